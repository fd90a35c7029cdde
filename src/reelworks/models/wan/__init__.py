"""Wan 2.1 and 2.2 (Alibaba), text to video and picture."""
