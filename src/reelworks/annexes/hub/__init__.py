"""Publish a run's weights on the hub: a model card, the weights, previews and the recipe, in one commit.

What is published names no file, folder, machine or account of whoever trained it: `neutral.py` decides what may be told.
"""
