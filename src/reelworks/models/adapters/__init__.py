"""LoRA for any denoiser: settings, layers injected by peft, and files in the usual conventions."""
