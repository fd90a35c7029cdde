"""STDiT3, the denoiser of Open-Sora 1.2, with its state-dict keys so that its weights load."""
