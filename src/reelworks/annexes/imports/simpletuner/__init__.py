"""Importer of SimpleTuner's configs and data backends."""
