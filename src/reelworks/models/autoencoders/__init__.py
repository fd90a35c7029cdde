"""Autoencoders: pixels to latents and back; see `models.api.Autoencoder`."""
