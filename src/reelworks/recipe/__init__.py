"""The recipe: one strict TOML file that is a complete run, composed of every package's `config.py`.

Torch-free. Reads recipes, applies overrides, explains mistakes, and opens the dataset that a recipe describes.
"""
