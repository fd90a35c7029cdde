"""The run folder: layout, lock, events, records of segments. Knows core alone; no torch.

Everything that a person sees of a run, on the terminal or on a page, is drawn from these files.
"""
