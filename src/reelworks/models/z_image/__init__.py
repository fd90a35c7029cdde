"""Z-Image (Alibaba), text to picture."""
