"""FLUX.2 (Black Forest Labs), text to picture."""
