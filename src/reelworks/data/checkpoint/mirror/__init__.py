"""Copies of checkpoints in another place: a disk, a network file system or an object store."""
