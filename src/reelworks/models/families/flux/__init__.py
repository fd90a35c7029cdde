"""FLUX.1 by Black Forest Labs: images."""
