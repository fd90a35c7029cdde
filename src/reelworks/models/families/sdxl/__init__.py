"""Stable Diffusion XL: images."""
