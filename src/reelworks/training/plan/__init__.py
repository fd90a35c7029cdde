"""Forecast plans as plain values: rejections, costs, strategies, and what to change.

Imports the recipe and everything that plans need, but not torch, so that the command line starts fast. `reports` and
`commands` turn these values into pages and tables.
"""
