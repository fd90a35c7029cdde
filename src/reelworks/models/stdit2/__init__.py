"""STDiT2, the denoiser of Open-Sora v1.1, with upstream's state-dict keys so that its weights load.

Owns the network, its sizes, its weights' formats and its adapter. Attention, embeddings and the final
layer are those of `models.stdit3`. May import core, precision, `models.api` and `models.stdit3`; knows
no autoencoder, text encoder, objective or trainer.
"""
