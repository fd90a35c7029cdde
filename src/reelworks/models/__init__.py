"""Denoisers, autoencoders and text encoders behind small protocols (`api.py`), one folder a family.

Knows core and precision; knows no data, schedule or trainer. Torch-free `config.py` files lie beside
what they configure.
"""
