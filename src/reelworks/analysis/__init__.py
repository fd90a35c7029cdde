"""What a plan will do and what a run has done, as values: forecasts, rejections, costs, the account of every clip.

Knows the recipe and everything that plans need; torch-free, so that the command line answers at once. Pages and
tables for people are drawn from these values by `report` and `cli`.
"""
