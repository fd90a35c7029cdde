"""Adapter types that `lora.type` selects: one class in one file for each, and their registry. Torch-free."""
