"""Samplers: from noise to latents by a function that predicts velocity, noise or a clean sample."""
