"""Ranks and shards: process groups, the device mesh, FSDP2 wrapping, sums over ranks.

Takes a sharding plan; knows no model and no data.
"""
