"""A recipe that trains a tiny model on small clips and pictures of three shapes within a second."""

from __future__ import annotations

from typing import Any

Recipe = dict[str, Any]


def values(footage: str, output: str) -> Recipe:
    """Return the values of the recipe."""
    return {
        "version": 1,
        "output": output,
        "seed": 7,
        "dataset": [{"path": footage}],
        "bucket": [{"resolution": "32px", "num_frames": [1, 5], "batch_size": [3, 2]}],
        # The footage has these shapes; every other one would only be audited.
        "buckets": {"upscale": True, "max_crop": 0.7, "aspect_ratios": ["3:2", "1:1", "2:3"]},
        "data": {"num_workers": 0},
        "model": {"name": "stdit3-tiny", "hidden_size": 32, "depth": 1, "num_heads": 2},
        "autoencoder": {"stride": 8},
        "text_encoder": {"dim": 16, "max_length": 6},
        "precision": {"compute": "float32"},
        "train": {"max_steps": 4, "learning_rate": 1e-3},
        "validation": {"split": 0.2, "timesteps": [200.0, 800.0]},
    }


def least(**tables: Any) -> Recipe:
    """Return the values of a recipe of one step on footage that is not there, with these tables in place of its own."""
    return {
        "version": 1,
        "output": "unused",
        "dataset": [{"path": "unused"}],
        "bucket": [{"resolution": "32x32", "num_frames": 1}],
        "model": {"name": "stdit3-tiny"},
        "train": {"max_steps": 1},
    } | tables


def of_family(name: str, output: object, *datasets: Recipe, **changes: Any) -> Recipe:
    """Return a recipe that trains a tiny network of diffusers for an epoch, from random weights."""
    recipe = {
        "version": 1,
        "output": str(output),
        "dataset": list(datasets),
        "bucket": [{"resolution": "32x48", "num_frames": 1, "batch_size": 2}],
        "data": {"num_workers": 0},
        "model": {"name": name},
        "autoencoder": {"stride": 4},
        "text_encoder": {"dim": 16, "max_length": 6},
        "precision": {"compute": "float32"},
        "train": {"max_epochs": 1, "threads": 1},
        "validation": {"split": 0.0},
    }
    return changed(recipe, changes)


def of_sounds(footage: object, output: object, **changes: Any) -> Recipe:
    """Return a recipe that trains picture and sound of clips of half a second, from random weights."""
    recipe = {
        "version": 1,
        "output": str(output),
        "seed": 7,
        "dataset": [{"path": str(footage)}],
        "bucket": [{"resolution": "32x32", "num_frames": 12, "batch_size": 1}],
        "data": {"num_workers": 0, "clip_start": "start", "fps": 24.0},
        "model": {"name": "ltx-2-sound-tiny"},
        "autoencoder": {"stride": 16},
        "text_encoder": {"dim": 32, "max_length": 4, "pooled_dim": 0},
        "sound": {"sample_rate": 400},  # 16 numbers for each latent frame
        "precision": {"compute": "float32"},
        "train": {"max_steps": 3, "learning_rate": 1e-2, "threads": 1},
    }
    return changed(recipe, changes)


def changed(recipe: Recipe, changes: Recipe) -> Recipe:
    """Return a recipe with changes, of which tables are added to those that it has."""
    tables = {key: {**recipe.get(key, {}), **value} for key, value in changes.items() if isinstance(value, dict)}
    return recipe | changes | tables
