"""Look at a training and tell of it: events, curves, records of clips, validation, profiles, comparisons of ranks."""
