"""Importers of other trainers' configs; nothing else in the package depends on them.

A config is read and never run. `importer` finds out whose it is and converts it; each trainer is a folder with a class
(`trainer.FormerTrainer`) that reads its files, and with tables: `keys.toml` has the rule of each of its keys (`rules`), which fill a
recipe (`draft`), others have its models, optimizers and defaults. `former` tells what its buckets drop of a folder.
"""
