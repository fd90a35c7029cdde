"""Sound of clips as models take it: recipe keys, and encoders of samples to latents.

Legend of the package: B clips, S samples, K channels of sound, F features of a latent frame, N latent frames.
"""
