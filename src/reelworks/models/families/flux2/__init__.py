"""FLUX.2 by Black Forest Labs: images."""
