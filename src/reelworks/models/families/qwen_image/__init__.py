"""Qwen-Image by Alibaba: images, and edits of images."""
