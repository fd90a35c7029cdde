"""Load a trained model, sample from it with guidance, and write pictures and clips.

`writers` needs no torch. Samplers live in `diffusion.samplers`.
"""
