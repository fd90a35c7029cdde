"""The run folder: layout, lock, events, records of segments. Imports only `core`; no torch.

Terminal output and report pages about a run are built from these files alone.
"""
