"""What the project promises in figures, measured; each prints ratios from one run."""
