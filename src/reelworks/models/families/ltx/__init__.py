"""LTX-Video by Lightricks: clips."""
