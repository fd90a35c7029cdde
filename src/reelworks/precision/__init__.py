"""The dtype contract: which dtype each component stores, computes in and returns, and its audit.

A boundary at a model's entry casts every input by its role; a guard inside finds what was left out and
names it. Knows no model and no trainer.
"""
