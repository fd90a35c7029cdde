"""The Open-Sora dialect of the bucket table: names, fixed sizes, value forms, and the walk of a clip.

Turns `[buckets.opensora]` into plain values and decides which entry takes a clip as the releases 1.1 to
2.0 do. May import core; knows neither the recipe nor the model, and reads no files.
"""
