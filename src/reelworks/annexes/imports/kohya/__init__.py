"""Settings that kohya's sd-scripts and musubi-tuner share, and how both are given."""
