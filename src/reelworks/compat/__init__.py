"""Importers of other trainers' configs; nothing else in the package depends on them."""
