"""The catalog: a table with one row of measures for each video or picture on disk.

Contains the probing of files (true frame counts, displayed size, damage), caption files, the append-only Parquet
store, the scan that brings a catalog up to date with its folders, and expressions over its columns. Imports core,
run, numpy, pyarrow, PyAV and Pillow; never torch. Decisions about training, such as buckets, filtered clips and
the hold-out, are made in other packages.
"""
