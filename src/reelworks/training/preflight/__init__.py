"""Checks and measurements before the first step: shapes, dtypes, memory, one step without an update."""
