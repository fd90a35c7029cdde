"""SANA-Video by NVIDIA: clips."""
