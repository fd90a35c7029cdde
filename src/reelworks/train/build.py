"""Runtime objects of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from reelworks.diffusion import objectives
from reelworks.encoders.encoders import LiveEncoder
from reelworks.models import components, factory, weights
from reelworks.models.api import Denoiser
from reelworks.models.diffusers_denoiser import FamilyDenoiser
from reelworks.models.expert_pair.config import PARTS, switch_timestep
from reelworks.models.expert_pair.denoiser import ExpertPairDenoiser
from reelworks.models.vision import VisionEncoder
from reelworks.precision.boundary import check_contract
from reelworks.recipe.recipe import Recipe

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def require_sources(recipe: Recipe, *, resumed: bool = False) -> None:
    """Look whether all weights that a recipe names are there, before the first of them is read.

    Args:
        recipe: Names them.
        resumed: The LoRA to begin with is not needed any more.

    Raises:
        UserError: Names the first that is not.
    """
    lora = None if recipe.lora is None or resumed else recipe.lora.weights
    named = {
        "model.weights": recipe.model.weights,
        "lora.weights": lora,
        "autoencoder.weights": recipe.autoencoder.weights,
        "text_encoder.weights": recipe.text_encoder.weights,
        "model.image_encoder": recipe.model.image_encoder,
    }
    found: set[str] = set()
    for field, source in named.items():
        if source is not None and source not in found:
            weights.require_there(source, field)
            found.add(source)


def denoiser(recipe: Recipe, device: torch.device, *, resumed: bool = False) -> Denoiser:
    """The recipe's model with its first weights: drawn from the seed, or loaded.

    Args:
        recipe: Names the model.
        device: Where it is moved.
        resumed: A checkpoint's LoRA takes the place of the one to begin with, whose file may be gone by then.
    """
    lora = recipe.lora
    if resumed and lora is not None:
        lora = lora.model_copy(update={"weights": None})
    return factory.build_denoiser(
        recipe.model,
        autoencoder=recipe.autoencoder,
        text=recipe.text_encoder,
        device=device,
        seed=recipe.seed,
        compute=DTYPES[recipe.precision.compute],
        reduction=DTYPES[recipe.precision.reduction],
        learns_variance=objectives.from_config(recipe.objective).learns_variance,
        lora=lora,
    )


def with_other_expert(recipe: Recipe, trained: Denoiser, device: torch.device) -> Denoiser:
    """Join the one expert that a run trains with the other as it was published.

    Returns:
        Both; `trained` itself where it is all of the model, or the other one is not among the weights.
    """
    model, boundary = recipe.model, switch_timestep(recipe.model)
    if boundary is None or model.experts == "both" or model.weights is None:
        return trained
    other: Literal["high", "low"] = "low" if model.experts == "high" else "high"
    if Path(model.weights).exists() and not (Path(model.weights) / PARTS[other]).is_dir():
        return trained
    changed = {"model": model.model_copy(update={"experts": other})}
    # Its LoRA changes nothing; with it, it lies in memory as the trained one's base does.
    published = denoiser(recipe.model_copy(update=changed), device, resumed=True)
    published.module.requires_grad_(False).eval()
    high, low = (trained, published) if other == "low" else (published, trained)
    assert isinstance(high, FamilyDenoiser)
    assert isinstance(low, FamilyDenoiser)
    return ExpertPairDenoiser(high, low, boundary)


def encoder(recipe: Recipe, device: torch.device) -> LiveEncoder:
    """The recipe's autoencoder, text encoder and, where the model is told of pictures by one, image encoder."""
    conditioning, image = components.conditioning(recipe.model), recipe.model.image_encoder
    kind = conditioning.image_encoder
    autoencoder = factory.build_autoencoder(recipe.autoencoder)
    text = factory.build_text_encoder(recipe.text_encoder)
    check_contract(autoencoder.contract, "autoencoder")
    check_contract(text.contract, "text")
    return LiveEncoder(
        autoencoder.to(device),
        text.to(device if recipe.text_encoder.device == "auto" else torch.device("cpu")),
        device,
        conditioning,
        None if kind is None or image is None else VisionEncoder(kind, image).to(device),
        given(recipe),
    )


def given(recipe: Recipe) -> tuple[str, ...]:
    """Names of the companions that the model is shown; all datasets have the same."""
    takes = components.conditioning(recipe.model).takes
    return tuple(name for name in takes if name in recipe.dataset[0].companions)
