"""Build a model from a recipe, with its first weights; training, sampling and evaluation begin with it."""
