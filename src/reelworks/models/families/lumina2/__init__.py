"""Lumina Image 2.0 by Alpha-VLLM: pictures."""
