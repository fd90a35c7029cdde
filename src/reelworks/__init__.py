"""Reelworks trains video and image diffusion models on footage of every shape."""

__version__ = "0.1.0.dev0"
