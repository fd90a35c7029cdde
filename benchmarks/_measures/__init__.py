"""Drawn pictures and clips whose measures are known: blurred by a known radius, letterboxed by known pixels, and so on."""
