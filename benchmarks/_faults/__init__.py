"""Faults for tests and benchmarks: processes killed at chosen points of training and at calls to the disk."""
