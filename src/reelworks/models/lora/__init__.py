"""LoRA on any denoiser: settings, layers put in by peft, and files in the conventions of the field."""
