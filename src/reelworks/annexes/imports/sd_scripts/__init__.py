"""Importer of kohya's sd-scripts."""
