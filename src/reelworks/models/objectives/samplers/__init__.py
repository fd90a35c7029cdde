"""Samplers, which turn noise into latents with a network that predicts velocity, noise or v."""
