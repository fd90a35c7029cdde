"""Weights of a run written for other programs, and checkpoints read without a model."""
