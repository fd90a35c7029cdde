"""A training: its recipe, its assembly, its steps, what observes them, and the plan of its clips."""
