"""Krea 2 by Krea: images."""
