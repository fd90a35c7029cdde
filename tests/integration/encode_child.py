"""Encoding of a recipe in a process of its own."""

from __future__ import annotations

from typing import Any


def encode(recipe: dict[str, Any]) -> None:
    """Encode what a recipe lacks, from a catalog that exists."""
    import torch

    from reelworks.training.plan import plan_forecast
    from reelworks.training.precompute import encoding
    from reelworks.training.recipe import recipe_file
    from reelworks.training.recipe.dataset import RecipeData

    torch.set_num_threads(1)
    data = RecipeData.open(recipe_file.parse(recipe))
    job = encoding.build_encoding_job(
        data, encoding.open_store(data), torch.device("cpu"), plan_forecast.plan_spec(data)
    )
    encoding.encode_missing(job)
