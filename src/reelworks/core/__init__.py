"""Basics that every layer shares: shapes, errors, digests, hashed draws, durable files.

Imports the standard library, numpy and (for the config base class) pydantic; never torch.
"""
