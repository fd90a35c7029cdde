"""What is checked and measured before the first step: shapes, dtypes, memory, one step without an update."""
