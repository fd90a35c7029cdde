"""Distributed training: process groups, the device mesh, FSDP2 wrapping, reductions. Knows no model and no data."""
