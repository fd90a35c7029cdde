"""Whole runs with a history: starts that end in many ways, changes between them, and what must be true after.

`draw` makes up a history, `play` lives through it, `watch` notes behind each optimizer step which clips took part,
`truth` says from these notes what holds, and `account` compares it with what `coverage` tells. Nothing here reads
what the run itself recorded, but to compare it.
"""
