"""Find files and lists of clips, examine them, and bring a catalog up to date."""
