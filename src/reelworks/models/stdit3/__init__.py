"""STDiT3, the denoiser of Open-Sora v1.2, with upstream's state-dict keys so that its weights load.

Owns the network, its sizes, its weights' formats and its adapter. May import core, precision and
`models.api`; knows no autoencoder, text encoder, objective or trainer.
"""
