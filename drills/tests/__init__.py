"""A few tries of each drill, and proofs that it sees what it looks for."""
