"""The catalog: a table with one row of measures for each video or picture on disk.

`store` is its append-only folder of Parquet files, `scan` brings it up to date with folders, archives and lists, and `query`
asks for rows and captions. Files are probed by `media`. Never imports torch. Decisions about training, such as buckets,
filtered clips and the hold-out, are made in other rooms.
"""
