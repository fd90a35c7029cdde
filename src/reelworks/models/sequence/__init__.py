"""Sequences of tokens that are divided over GPUs."""
