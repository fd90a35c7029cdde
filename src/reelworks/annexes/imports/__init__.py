"""Importers of other trainers' configs; nothing else in the package depends on them.

A config is read and never run. `importer` finds out whose it is and converts it; each trainer is a folder with a class
(`trainer.FormerTrainer`) that reads its files, the rules of its keys (`rules`), which fill a recipe (`draft`), and, where its
source tells, what it does with each clip (`former`).
"""
