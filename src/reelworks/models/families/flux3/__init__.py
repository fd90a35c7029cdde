"""FLUX.3 Image Klein by Black Forest Labs: images."""
