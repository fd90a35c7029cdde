"""HiDream-I1: pictures."""
