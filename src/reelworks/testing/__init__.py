"""Helpers that ship with Reelworks for trying and checking it: the contract that every denoiser keeps, crash points.

Nothing that trains imports it.
"""
