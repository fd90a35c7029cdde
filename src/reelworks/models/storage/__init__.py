"""Weights in the formats in which people store them."""
