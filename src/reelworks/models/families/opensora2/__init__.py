"""Open-Sora 2.0 by HPC-AI Tech: clips and pictures."""
