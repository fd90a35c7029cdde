"""Encode the clips and captions of a recipe before training; `training.encoding`, which does the work, knows no recipe."""
