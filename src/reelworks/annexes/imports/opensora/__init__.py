"""Importer of Open-Sora's configs: translates their keys and defaults to a recipe."""
