"""Qwen-Image 2.1 by Alibaba: images, and images made from other images."""
