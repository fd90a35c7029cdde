"""Configs of OneTrainer: presets, and what its window saves, with the concepts of the data set."""
