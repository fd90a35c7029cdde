"""Stable Diffusion 1.5: images."""
