"""Attention kernels: which is chosen, which calls a network makes, and whether the kernel is right."""
