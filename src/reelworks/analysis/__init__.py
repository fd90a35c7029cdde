"""Forecasts of plans and accounts of runs, as values: rejections, costs, the history of every clip.

Knows the recipe and everything that plans need; torch-free, so that the command line answers at once. Pages and
tables for people are drawn from these values by `report` and `cli`.
"""
