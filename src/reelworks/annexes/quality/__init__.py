"""Measures of clips, whose values become columns of the catalog: sharpness, exposure, motion, cuts, duplicates, sound and others.

It owns the contract of a measure and the registry of their names, the one decoding that all measures of a clip share, and
the run over a catalog that keeps values by content (`data.catalog.store.kept_measures`) and writes them as scores. Never imports
torch. What becomes of a clip by its values is decided by filters of a recipe.
"""
