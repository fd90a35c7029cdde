"""Turn a catalog, a bucket table and a schedule into micro-batches.

Decides which clips an epoch trains and why the others are left out, tracks the position in the data and resumes it
exactly, writes the records of segments, and loads. Takes values (`DataSpec`), never a recipe. Only `loader` needs torch.
"""
