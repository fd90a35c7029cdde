"""An epoch as a pure function: plan, incomplete batches, cursor, coverage.

Arrays in, arrays out: no files, no torch, no generator state. The same arguments give the same plan on
every platform, so a resume builds the plan again instead of replaying it.
"""
