"""What is measured, and how: each module runs by itself, ``python -m benchmarks`` runs all. See docs/benchmarks.md."""
