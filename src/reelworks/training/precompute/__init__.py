"""Encode the clips and captions of a recipe before training; `training.encoding.precompute`, which does the work, knows no recipe."""
