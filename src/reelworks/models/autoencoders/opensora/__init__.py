"""The autoencoders of Open-Sora, with upstream's state-dict keys so that their weights load.

v1.1 encodes frame by frame with the 2D autoencoder of Stable Diffusion; v1.2 then compresses time with a
causal network. The package may import core, precision and `models.{api,config,fit,weight_files}`; the 2D
autoencoder comes from diffusers, imported when it is built.
"""
