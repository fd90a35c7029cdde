"""Build the runtime objects of a recipe: the network, its encoders, and both ready to train."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from reelworks.core import log
from reelworks.core.log import logger
from reelworks.data.buckets.entry import Recomputation
from reelworks.data.distributed import layout
from reelworks.data.distributed.layout import Layout, Needs
from reelworks.models import components, factory, hub, registry
from reelworks.models.adapters import frozen
from reelworks.models.api import Autoencoder, Denoiser, DenoiserInputs, ImageEncoder, TextEncoder
from reelworks.models.attention.attention_audit import ReplacedKernels
from reelworks.models.base_model import Base
from reelworks.models.diffusers_denoiser import FamilyDenoiser
from reelworks.models.expert_pair.config import PARTS, switch_timestep
from reelworks.models.expert_pair.denoiser import GUIDE, ExpertPairDenoiser, GuidedDenoiser
from reelworks.models.family import IMAGE_ENCODERS
from reelworks.models.objectives import objectives
from reelworks.models.precision.boundary import DtypeBoundary, check_contract
from reelworks.models.sequence.sequence_parallel import SequenceParallel
from reelworks.models.storage import file_facts, weights
from reelworks.models.vision import VisionEncoder
from reelworks.training.encoding.encoders import FrozenEncoders, Lazy, SoundTrack
from reelworks.training.recipe import weight_sources
from reelworks.training.recipe.dataset import sound_spec
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import compiled_encoder, optimizer_names
from reelworks.training.step.compiled_blocks import CompiledBlocks, FirstShapes
from reelworks.training.step.state import TrainState

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
# A trained weight has a gradient, an average and two moments of the optimizer beside itself, all in float32.
_BYTES_BESIDE_A_TRAINED_WEIGHT = 16


@dataclass(frozen=True)
class TrainedModel:
    """The network, sharded and with its optimizer, and the encoders of its inputs; without a LoRA, `base` is None.

    Attention must be computed while `attention.replaced()` is open.
    """

    boundary: DtypeBoundary[DenoiserInputs]
    encoder: FrozenEncoders
    state: TrainState
    base: Base | None
    compiled: CompiledBlocks
    sequence: SequenceParallel
    layout: Layout
    attention: ReplacedKernels
    recomputation: tuple[Recomputation, ...] = ()  # of each bucket, where the recipe leaves it to the bucket
    compiled_shapes: tuple[FirstShapes, ...] = ()  # of the network's blocks, and of networks that encode


def require_sources(recipe: Recipe, *, resumed: bool = False, trains: bool = True) -> dict[str, str]:
    """Check that all weights that a recipe names exist, before any of them is read.

    Returns:
        Hub ids with the commits of the sources that are on the hub, by recipe key.
    """
    sources, places = weight_sources.by_key(recipe, resumed=resumed, trains=trains), dict[str, Path]()
    for field, source in sources.items():
        if source not in places:
            required = weights.require_file if field == weight_sources.ONE_FILE else weights.require_there
            places[source] = required(source, field)
    if trains and recipe.model.weights is not None:
        _compare_objective(recipe, places[recipe.model.weights])
    pinned = {field: hub.pin_commit(source, places[source]) for field, source in sources.items()}
    return {field: hub_id for field, hub_id in pinned.items() if hub_id is not None}


def _compare_objective(recipe: Recipe, place: Path) -> None:
    """Warn where noise is predicted with weights that say they predict v, or the other way round."""
    own, (stated, _) = recipe.objective.name, file_facts.objective_of(str(place))
    if own in objectives.PREDICTIONS and stated not in (None, own):
        logger.warning(
            f'model.weights say that they were trained with objective.name = "{stated}", and the recipe has "{own}"'
        )


def denoiser(
    recipe: Recipe, device: torch.device, *, resumed: bool = False, trains: bool = True, part: str | None = None
) -> Denoiser:
    """Build the recipe's network, with weights loaded from files or drawn from the seed.

    If the run is resumed, the LoRA comes from a checkpoint; lora.weights is not read, and may no longer exist. The
    same holds for the training adapter of a network that is not built to be trained. `part` is as for `build_denoiser`.
    """
    lora = recipe.lora
    if resumed and lora is not None:
        lora = lora.model_copy(update={"weights": None})
    if not trains and lora is not None:
        lora = lora.model_copy(update={"training_adapter": None})
    source = "weights drawn from the seed" if recipe.model.weights is None else recipe.model.weights
    with (
        nullcontext()
        if device.type == "meta"
        else log.stage(f"loading the model {recipe.model.name}: {'/'.join(filter(None, [source, part]))}", at_once=True)
    ):
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
            sound=recipe.sound,
            part=part,
        )


def with_other_network(recipe: Recipe, trained: Denoiser, device: torch.device) -> Denoiser:
    """Join the network that a run trains with the published weights of its other expert, or of what guides it.

    Returns:
        Both networks; `trained` alone if it is the whole model, or if model.weights lacks the other one.
    """
    if components.conditioning(recipe.model).guidance == "second-network":
        return _with_guide(recipe, trained, device)
    model, boundary = recipe.model, switch_timestep(recipe.model)
    if boundary is None or model.experts == "both" or model.weights is None:
        return trained
    other: Literal["high", "low"] = "low" if model.experts == "high" else "high"
    if _lacks(model.weights, PARTS[other]):
        return trained
    changed = {"model": model.model_copy(update={"experts": other})}
    # Its LoRA is fresh and changes nothing; with it, the weights are stored (quantized) as the trained expert's are.
    published = denoiser(recipe.model_copy(update=changed), device, resumed=True, trains=False)
    published.module.requires_grad_(False).eval()
    high, low = (trained, published) if other == "low" else (published, trained)
    assert isinstance(high, FamilyDenoiser)
    assert isinstance(low, FamilyDenoiser)
    return ExpertPairDenoiser(high, low, boundary)


def _lacks(source: str, part: str) -> bool:
    """Whether weights on this machine have no folder for a part."""
    place = Path(source).expanduser()
    return place.exists() and not (place / part).is_dir()


def _with_guide(recipe: Recipe, trained: Denoiser, device: torch.device) -> Denoiser:
    source = recipe.model.weights
    if source is None or _lacks(source, GUIDE):
        return trained
    guide = denoiser(recipe, device, resumed=True, trains=False, part=GUIDE)
    guide.module.requires_grad_(False).eval()
    assert isinstance(trained, FamilyDenoiser)
    assert isinstance(guide, FamilyDenoiser)
    return GuidedDenoiser(trained, guide)


def encoder(recipe: Recipe, device: torch.device) -> FrozenEncoders:
    """Build the recipe's autoencoder and its text encoder, and encoders of images and of sound if the model has them."""
    names = recipe.autoencoder.name, recipe.text_encoder.name
    with log.stage("loading the autoencoder {} and the text encoder {}".format(*names), at_once=True):
        return _encoders(recipe, device, autoencoder, lambda name, build, **known: build())


def lazy_encoder(recipe: Recipe, device: torch.device) -> FrozenEncoders:
    """Return the recipe's encoders, each of which is loaded, and perhaps compiled, when it is first used.

    What an input of the network needs to be made of nothing, their sizes, is known before.
    """

    def compiled_autoencoder(recipe: Recipe, device: torch.device) -> Autoencoder:
        built = autoencoder(recipe, device)
        compiled_encoder.of_recipe(built, recipe, device)
        return built

    return _encoders(recipe, device, compiled_autoencoder, Lazy)


def _encoders(
    recipe: Recipe,
    device: torch.device,
    build_autoencoder: Callable[[Recipe, torch.device], Autoencoder],
    made: Callable[..., Any],
) -> FrozenEncoders:
    """Return the recipe's encoders, each `made` of its name, the function that builds it, and its sizes."""
    conditioning, weights = components.conditioning(recipe.model), recipe.model.image_encoder
    text, kind = recipe.text_inputs, conditioning.shown.encoder
    published = registry.TEXT_ENCODERS.get(text.name)
    pixels = made(
        "autoencoder",
        partial(build_autoencoder, recipe, device),
        geometry=components.autoencoder_geometry(recipe.autoencoder),
        latent_channels=components.latent_channels(recipe.autoencoder),
    )
    captions = made(
        "text encoder",
        partial(text_encoder, recipe, device),
        **{size: getattr(text, size) for size in ("dim", "pooled_dim", "max_length")},
        sees_pictures=published is not None and published.sees_pictures,
    )
    image: ImageEncoder | None = None
    if kind is not None and weights is not None:
        sizes = {"tokens": IMAGE_ENCODERS[kind].tokens, "dim": conditioning.shown.width}
        image = made("image encoder", lambda: VisionEncoder(kind, weights).to(device), **sizes)
    track: SoundTrack | None = None
    if (sound := recipe.sound) is not None and (spec := sound_spec(recipe)) is not None:
        facts = components.sound_facts(sound)
        heard = made("sound encoder", lambda: factory.build_sound_encoder(sound).to(device), facts=facts)
        track = SoundTrack(heard, spec, sound)
    return FrozenEncoders(pixels, captions, device, conditioning, image, recipe.given_companions, sound=track)


def autoencoder(recipe: Recipe, device: torch.device) -> Autoencoder:
    """Build the recipe's autoencoder on a device."""
    built = factory.build_autoencoder(recipe.autoencoder)
    check_contract(built.contract, "autoencoder")
    return built.to(device)


def text_encoder(recipe: Recipe, device: torch.device) -> TextEncoder:
    """Build the recipe's text encoder on a device, or in CPU memory if the recipe says so."""
    built = factory.build_text_encoder(recipe.text_encoder, trained=recipe.trains_text_encoders)
    check_contract(built.contract, "text")
    return built.to(device if recipe.text_encoder.device == "auto" else torch.device("cpu"))


def choose_layout(
    recipe: Recipe, denoiser: Denoiser, *, ranks: int, local_ranks: int, device_bytes: int
) -> tuple[Layout, str]:
    """Return the layout of a recipe's network, which is not sharded yet, and the reason for it.

    Raises:
        UserError: The ranks cannot be divided as the recipe says, or the optimizer cannot work on shards.
    """
    needs = Needs(
        is_lora=recipe.lora is not None,
        state_bytes=state_bytes(denoiser),
        device_bytes=device_bytes,
        whole=optimizer_names.OPTIMIZERS[recipe.train.optimizer].whole,
    )
    chosen, reason = layout.choose(recipe.parallel, ranks, local_ranks, needs)
    optimizer_names.require(recipe.train.optimizer, chosen)
    return chosen, reason


def state_bytes(denoiser: Denoiser) -> int:
    """Return the bytes of one full copy of a network with its gradients, optimizer state and average."""
    module = denoiser.module
    held: list[Tensor] = [*module.parameters(), *module.buffers()]
    held += [buffer for layer in frozen.quantized_layers(module) for buffer in layer.buffers()]
    unique = {id(tensor): tensor.numel() * tensor.element_size() for tensor in held}
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return sum(unique.values()) + _BYTES_BESIDE_A_TRAINED_WEIGHT * trained
