"""Encode the clips and captions of a recipe before training; `encoders.precompute`, which does the work, knows no recipe."""
