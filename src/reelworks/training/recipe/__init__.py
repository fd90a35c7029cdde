"""The recipe: one strict TOML file that describes a complete run, composed of every package's `config.py`.

Torch-free. Reads recipes, applies overrides, explains mistakes, and opens the dataset that a recipe describes.
"""
