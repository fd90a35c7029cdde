"""Ideogram 4: pictures."""
