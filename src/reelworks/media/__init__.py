"""Files to frames: decode, choose frames, resize and crop to one exact shape, as uint8; and the pool that does it.

PyAV reads clips and Pillow pictures. Torch-free, so that worker processes start fast; knows nothing of plans or
batches.
"""
