"""Checkpoints: whole or absent, verified before use, kept by a policy that can say why.

Owns everything below a run's `checkpoints/`: names, manifests, the commit protocol, retention and
loading. Folders and manifests are the truth; `latest` is a hint and `history.jsonl` a diary, which adds
only the metrics that came after a save. What is not named by our own rules is never touched.

May import core, run and torch.distributed.checkpoint; what lists, explains, verifies and deletes does without
torch (`tests/test_layers.py` names the modules), so that looking at checkpoints is instant. It does not know
models, optimizers or the trainer: state comes as nested dicts of tensors and plain values.
"""
