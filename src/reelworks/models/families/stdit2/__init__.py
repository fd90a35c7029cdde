"""STDiT2, the denoiser of Open-Sora 1.1, with its state-dict keys so that its weights load."""
