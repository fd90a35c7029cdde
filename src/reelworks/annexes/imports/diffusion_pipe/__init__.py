"""Configs of diffusion-pipe: its main TOML and its dataset TOML."""
