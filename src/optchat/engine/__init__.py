"""Acts. The use cases: load, decide by core, commit in one transaction."""
