"""Importer of musubi-tuner."""
