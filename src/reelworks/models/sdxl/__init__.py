"""Stable Diffusion XL (Stability AI), text to picture."""
