"""From frames and captions to latents and embeddings: the one place where data meets an encoder."""
