"""Denoisers, autoencoders and text encoders behind small protocols (`api.py`), one folder per family.

Knows no recipe and no trainer. Recipe keys are in torch-free `config.py` files.
"""
