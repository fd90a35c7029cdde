"""Encode a recipe's clips and captions ahead of training, and open the store for training from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from reelworks.core.log import logger
from reelworks.data.catalog.config import DRAWN, DatasetConfig
from reelworks.data.catalog.sources import REJECTED
from reelworks.data.distributed.mesh import World
from reelworks.data.loader.position import next_epoch
from reelworks.data.schedule.plan import PlanSpec
from reelworks.models import components, registry
from reelworks.training.assembly import build
from reelworks.training.encoding import encode, reachable, request_key
from reelworks.training.encoding.encode import Encoding, EncodingForecast
from reelworks.training.encoding.encode_worker import Progress, Report
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.encoding.request_key import EncoderIds, FileDigests, Keys
from reelworks.training.encoding.store import EncodedStore
from reelworks.training.encoding.stored_batches import StoredLatents
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe


def encoder_ids(recipe: Recipe, folder: Path) -> EncoderIds:
    """Return the identities of a recipe's encoders; digests of large files are remembered in the store's folder."""
    known = FileDigests(folder / "digests.json")
    conditioning, image = components.conditioning(recipe.model), recipe.model.image_encoder
    kind, text = conditioning.shown.encoder, registry.TEXT_ENCODERS.get(recipe.text_encoder.name)
    sound, objective = None, recipe.objective
    if recipe.sound is not None:  # how its latents are trained is no part of its identity
        only = {"name", "sample_rate"}
        sound = request_key.encoder_id(recipe.sound, "sound.weights", known, part="audio_vae", only=only)
    # Graphs round to bfloat16 in fewer places. In float32 they differ as batches do: in the order of sums.
    compiled = recipe.train.compile and recipe.autoencoder.dtype == "bfloat16"
    return EncoderIds(
        autoencoder=request_key.encoder_id(
            recipe.autoencoder, "autoencoder.weights", known, part="vae", compiled=compiled
        ),
        text=request_key.encoder_id(recipe.text_inputs, "text_encoder.weights", known),
        image=None if kind is None or image is None else request_key.image_encoder_id(kind, image, known),
        first_frame=conditioning.shown.first,
        last_frame=conditioning.shown.last,
        given=(*recipe.given_companions, *((REJECTED,) if recipe.learns_preferences else ())),
        empty_caption=conditioning.empty_caption == "encoded"
        and (objective.caption_dropout > 0 or objective.target_guidance_scale is not None),
        control_parts=conditioning.companions.control_parts,
        text_sees_pictures=text is not None and text.sees_pictures,
        latent_dtype=recipe.encode.dtype,
        sound=sound,
    )


def open_store(data: RecipeData) -> StoredLatents:
    """Open the recipe's store with the keys of its clips."""
    store = EncodedStore.open(data.recipe.encoded_folder)
    return StoredLatents(store, Keys(data, encoder_ids(data.recipe, store.path)))


def drawn_settings(recipe: Recipe) -> list[str]:
    """Return the keys of a recipe by which a clip's frames or caption are drawn anew at each use."""
    conditioning = components.conditioning(recipe.model)
    crop = ["data.crop"] if recipe.data.crop == "random" else []
    masks = ["objective.mask_ratios"] if conditioning.companions.control_parts and recipe.objective.mask_ratios else []
    plain = DatasetConfig(path="-")
    drawn = DRAWN & {
        key for d in recipe.dataset for key in DRAWN if getattr(d, key) not in (getattr(plain, key), "first")
    }
    return [*crop, *masks, *(f"dataset.{key}" for key in sorted(drawn))]


def epochs(data: RecipeData, spec: PlanSpec) -> range:
    """Return the epochs that a recipe trains, or the first one if their clips do not differ.

    A training of so many clips may read the next epoch too: micro-batches are encoded ahead, and clips may fail.

    Raises:
        UserError: No clip can be trained.
    """
    start, train = data.stage, data.recipe.train
    position, _ = next_epoch(data, spec, None, first=start.epoch)
    position = replace(position, global_step=start.step, clips_before=start.clips)
    while reachable.varies(data):
        plan, step = position.plan, position.global_step + position.plan.num_steps
        ends = (position.epoch + 1, train.max_epochs), (step, train.max_steps), (position.clips, train.max_clips)
        if any(end is not None and count >= end for count, end in ends):
            break
        ended = replace(position, global_step=step, counts=replace(position.counts, trained=plan.planned))
        position, _ = next_epoch(data, spec, ended)
    return range(start.epoch, position.epoch + 1)


def build_encoding_job(
    data: RecipeData,
    source: StoredLatents,
    device: torch.device,
    spec: PlanSpec,
    *,
    limit: int | None = None,
    encoder: FrozenEncoders | None = None,
) -> Encoding:
    """Prepare the encoding of all that a recipe's training reads; by default, encoders are loaded when it needs them."""
    recipe = data.recipe
    if recipe.encode.variants == 1 and (fixed := drawn_settings(recipe)):
        logger.warning(
            f"encode.variants is 1, so each clip is shown alike in all epochs in spite of {', '.join(fixed)}; raise it to "
            "store several variants of each clip"
        )
    return Encoding(
        source,
        build.lazy_encoder(recipe, device) if encoder is None else encoder,
        reachable.chunks(data, reachable.in_epochs(data, spec, epochs(data, spec)), limit),
        recipe.data,
        text_width=4 if recipe.text_encoder.name == "hashed" else 2,
    )


def encode_missing(
    encoding: Encoding, prompts: Sequence[str] = (), on_progress: Report = lambda progress: None
) -> tuple[EncodingForecast, Progress]:
    """Say what will be encoded, check the disk's space, and encode it; the work is shared with other processes.

    Raises:
        UserError: The disk has too little space.
    """
    forecast = announce(encoding)
    progress = Progress(0)
    if forecast.clips or forecast.captions:
        progress = encoding.run(forecast, prompts, on_progress)
        encode.log_failures(progress)
    return forecast, progress


def announce(encoding: Encoding) -> EncodingForecast:
    """Say what will be encoded, and check the disk's space.

    Raises:
        UserError: The disk has too little space.
    """
    forecast = encoding.forecast()
    logger.info(forecast.to_text())
    encoding.require_space(forecast)
    return forecast


def before_training(
    data: RecipeData, encoder: FrozenEncoders, world: World, spec: PlanSpec, on_progress: Report
) -> StoredLatents:
    """Encode what a recipe's store lacks, on all ranks together, and return the store. Collective.

    `encoder` also embeds the prompts of previews, so that text encoders are loaded once.
    """
    if world.is_main:
        open_store(data)  # digests large files once, and creates the folder
    world.wait()
    source = open_store(data)
    prompts = data.recipe.samples.prompts
    encode_missing(build_encoding_job(data, source, world.device, spec, encoder=encoder), prompts, on_progress)
    world.wait()
    source.store.refresh()
    encoder.embed_ahead(prompts)  # those of a recipe of which everything was stored; no network takes memory yet
    return source
