"""The dtype contract: which dtype each component stores, computes in and returns, and its audit.

A boundary at a model's entry casts every input by its role; a guard inside reports mismatches with their module path.
The contract itself stands in `data.distributed`, since weights are sharded by its dtypes.
Depends on no model and no trainer.
"""
