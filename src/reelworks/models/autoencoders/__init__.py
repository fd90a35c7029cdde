"""Autoencoders: pixels in [-1, 1] to latents of about unit variance, and back.

Each is a final class that satisfies `models.api.Autoencoder`. May import core, precision and
`models.{api,config}`; knows no denoiser, data or trainer.
"""
