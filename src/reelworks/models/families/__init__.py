"""One folder per model family: `spec.py` (arguments of its networks, torch-free), `family.toml` (its models and how they
were published) and `network.py` (how its networks are called).
"""
