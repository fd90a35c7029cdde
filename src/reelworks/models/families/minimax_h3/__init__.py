"""MiniMax-H3: clips."""
