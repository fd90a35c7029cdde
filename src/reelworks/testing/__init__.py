"""Helpers that ship with Reelworks for trying and checking it.

Owns the demo data set (`demo`), which is real files of many shapes, codecs and faults made from nothing,
what judges the clips of a model trained on it (`colour`), and what kills processes at chosen points
(`crash`, `one_save`, `faults`). May import every package above it; the demo and the scoring use core,
numpy, PyAV and Pillow alone, so `reelworks demo-data` answers without torch. Does not train, scan or
draw reports, and nothing that trains imports it.
"""
