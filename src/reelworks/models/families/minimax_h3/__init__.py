"""MiniMax-H3: clips, with or without their sound."""
