"""Ask a trained model for clips and for figures."""
