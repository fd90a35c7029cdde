"""FLUX.1 (Black Forest Labs), text to picture."""
