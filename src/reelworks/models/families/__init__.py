"""One folder per model family: `spec.py` (torch-free facts) and `network.py` (how the network is called)."""
