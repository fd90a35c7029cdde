"""Chroma1 by Lodestone: images."""
