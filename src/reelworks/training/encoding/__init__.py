"""Encode frames and captions as latents and embeddings: the one package that joins data and encoders."""
