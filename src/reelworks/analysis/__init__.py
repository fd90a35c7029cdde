"""Forecast plans and account for runs, as plain values: rejections, costs, the history of every clip.

Imports the recipe and everything that plans need, but not torch, so that the command line starts fast. `report` and
`cli` turn these values into pages and tables.
"""
