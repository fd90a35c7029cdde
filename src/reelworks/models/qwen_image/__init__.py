"""Qwen-Image (Alibaba), text to picture."""
