"""From noise to files: guided sampling, and writing pictures and clips.

Owns the sampler of rectified flow and the writers. May import core, precision, objective, models and
encode; `writers` needs no torch. Does not load checkpoints, encode captions or decode latents inside
the sampler: it is given a velocity function and returns latents.
"""
