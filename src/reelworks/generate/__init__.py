"""From noise to files: a trained model loaded, guided sampling, and pictures and clips written.

`writers` needs no torch. Samplers live in `diffusion.samplers`.
"""
