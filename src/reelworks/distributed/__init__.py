"""Distributed training: process groups, mesh, FSDP2, reductions, shared tokens. Knows no model and no data."""
