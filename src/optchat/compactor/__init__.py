"""Workers and summarizers: the only place that waits for a model."""
