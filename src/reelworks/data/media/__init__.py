"""Open files, measure them, and decode them to frames of one exact shape, as uint8; with a pool of decoders.

The only room that opens pictures and videos: their true frame counts, displayed size and damage are found here.

PyAV reads videos, Pillow reads pictures. Torch-free, so that worker processes start fast; independent of plans
and batches.
"""
