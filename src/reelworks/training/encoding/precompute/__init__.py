"""Encode clips and captions into the store, by processes that share the work."""
