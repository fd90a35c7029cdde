"""Stable Diffusion 3 and 3.5 (Stability AI), text to picture."""
