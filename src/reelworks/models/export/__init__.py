"""Weights in files for other programs, and checkpoints read without a model."""
