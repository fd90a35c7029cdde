"""The plan of an epoch as a pure function of arrays, and the cursor that marks a position in it.

The same arguments give the same plan on every platform, so a resume builds the plan again instead of replaying
it. Needs no torch and no generator state.
"""
