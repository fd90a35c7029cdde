"""Ranks: process groups, mesh, FSDP2, reductions, divided sequences. Knows no model and no data."""
