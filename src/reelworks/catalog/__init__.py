"""The catalog: a row for each video or picture on disk, and its measures.

Owns probing (true frame counts, displayed size, damage), caption files, the append-only Parquet
store, the scan that brings a catalog up to date with its folders, and expressions over its columns.
Imports core, run, numpy, pyarrow, PyAV and Pillow; never torch. It decides nothing about training:
buckets, what a filter leaves out and the hold-out belong to others.
"""
