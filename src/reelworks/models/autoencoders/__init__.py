"""Autoencoders: pixels in [-1, 1] to latents of about unit variance, and back.

Each is a final class that satisfies `models.api.Autoencoder`. The package may import core, precision and
`models.{api,config}`; it depends on no denoiser, data or trainer.
"""
