"""Stable Diffusion 3 and 3.5: images."""
