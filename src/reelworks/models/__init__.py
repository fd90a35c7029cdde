"""Denoisers, autoencoders and text encoders behind small protocols (`api.py`), one folder per family.

Imports core and precision, but no data, schedule or trainer. Recipe keys are in torch-free `config.py` files.
"""
