"""Bucket tables of Open-Sora 1.1 to 2.0: their names, fixed sizes and value formats.

May import core; knows neither the recipe nor the model, and reads no files.
"""
