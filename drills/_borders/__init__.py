"""Drills of what a stranger's program touches: each is one try with random circumstances, and returns what went wrong."""
