"""Measure which batch sizes fit, and how long they take."""
