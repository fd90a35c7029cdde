"""Tell what a run does: events, curves, records of clips, profiles, comparisons of ranks, and previews."""
