"""From a catalog, a bucket table and a schedule to micro-batches.

Owns which clips an epoch trains and why the others stay out, the position in the data and its exact resume, the
records of segments, and the loader. Takes values (`DataSpec`), never a recipe. Only `loader` needs torch.
"""
