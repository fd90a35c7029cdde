"""Functions for processes of a cluster."""
