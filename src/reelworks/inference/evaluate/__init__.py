"""Measures of trained models and of what they generate: held-out loss, metrics of clips, exchange with VBench.

It owns the metrics and their names, and the files of results. It neither trains nor generates; previews
are measured by it.
"""
