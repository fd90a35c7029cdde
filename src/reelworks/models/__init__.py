"""Denoisers, autoencoders and text encoders behind small protocols (`api.py`), one folder per family.

Imports core, buckets, precision and distributed, but no data or trainer. Recipe keys are in torch-free `config.py` files.
"""
