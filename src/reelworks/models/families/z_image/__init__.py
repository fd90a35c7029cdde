"""Z-Image by Alibaba: images."""
