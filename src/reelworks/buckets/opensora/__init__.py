"""Bucket tables of Open-Sora: their names, fixed sizes and value formats, and their assignment of clips.

Parses `[buckets.opensora]` and assigns clips to its entries as the releases 1.1 to 2.0 do. May import core; knows
neither the recipe nor the model, and reads no files.
"""
