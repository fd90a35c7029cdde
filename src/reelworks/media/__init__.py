"""Decode files to frames: choose frames, resize and crop to one exact shape, as uint8; and a pool of decoders.

PyAV reads videos, Pillow reads pictures. Torch-free, so that worker processes start fast; independent of plans
and batches.
"""
