"""Importer of ai-toolkit's training jobs."""
