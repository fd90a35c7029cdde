"""Checkpoints: written atomically, verified before use, retained by a policy that gives its reasons.

Owns everything below a run's `checkpoints/`: names, manifests, the commit protocol, retention and loading.
Folders and manifests are authoritative; `latest` is a hint, and `history.jsonl` a log whose only further
information is the metrics recorded after a save. Files that do not match our naming rules are never touched.

May import core, run and torch.distributed.checkpoint; listing, explaining, verifying and deleting work without
torch (`tests/test_layers.py` names the modules) and so start instantly. It does not know the trainer: a state is
objects with a `state_dict`, tensors and plain values, by the names of its parts.
"""
