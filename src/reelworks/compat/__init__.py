"""Importers of what other trainers wrote; nothing else in the package depends on them."""
