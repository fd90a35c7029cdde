"""Random draws about the clips of a micro-batch: timesteps, noise, conditioning frames, dropped captions.

Every draw about a clip is a function of (seed, epoch, uid, copy, purpose), so it does not depend on rank, batch or order;
the expert that a step trains is one of (seed, step).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reelworks.core import hash_rng, machine
from reelworks.core.arrays import U64
from reelworks.core.hash_rng import Purpose
from reelworks.core.shape import Geometry, Shape
from reelworks.data.buckets.table import BucketTable
from reelworks.data.loader import frame_masks, step_source
from reelworks.data.loader.micro_batch import MicroBatchRequest
from reelworks.data.schedule.plan import EpochPlan
from reelworks.models.expert_pair.config import switch_timestep
from reelworks.models.objectives import objectives, timesteps
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.models.sound.config import SoundConfig
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import sound_inputs
from reelworks.training.step.sound_inputs import SoundDraws


def objective_of_step(
    recipe: Recipe, table: BucketTable, geometry: Geometry, *, plan: EpochPlan, plan_step: int, step: int
) -> ObjectiveConfig:
    """Return the recipe's objective, limited to the timesteps of the expert that a step trains.

    All clips of a step, on all ranks, train the same expert, so that the other one is not run. It is drawn with the
    share of timesteps that the step's clips would draw in its range, so that over many steps each expert trains on as
    many clips as if each clip drew for itself. `step` counts the optimizer steps done before it.
    """
    switch = switch_timestep(recipe.model)
    if switch is None or recipe.model.experts != "both":
        return recipe.objective
    objective = recipe.objective
    low = clips = 0.0
    for bucket, count in step_source.batches_of_step(plan, plan_step):
        shape = table.buckets[bucket].shape
        ratio = shift_ratio(objective, shape, geometry.latent(shape))
        low += count * timesteps.share_below(switch, objective, ratio)
        clips += count
    draw = float(hash_rng.uniform(hash_rng.hash64(recipe.seed, step, Purpose.EXPERT)))
    timestep_range = [0.0, switch] if draw * clips < low else [switch, 1000.0]
    return objective.model_copy(update={"timestep_range": timestep_range})


def shift_ratio(config: ObjectiveConfig, shape: Shape, latent: tuple[int, int, int]) -> float:
    """Return the ratio by which timesteps of a clip with these latents are shifted."""
    return timesteps.shift_ratio(
        config,
        height=shape.height,
        width=shape.width,
        num_frames=shape.num_frames,
        latent_frames=latent[0],
        latent_area=latent[1] * latent[2],
    )


@dataclass(frozen=True)
class RandomDraws:
    """Random draws of one micro-batch, on the CPU.

    Attributes:
        unshifted_time: `[B]` timesteps before the shift, in [0, 1000].
        time: `[B]` timesteps to train, after the shift.
        frame_mask: `[B, T]` True for a latent frame that is generated, False for a conditioning frame.
        drop_text: `[B]` True for a clip that is trained with the empty caption.
        sound: Draws about the sound; None if there is none.
    """

    unshifted_time: Tensor
    time: Tensor
    frame_mask: NDArray[np.bool_]
    drop_text: NDArray[np.bool_]
    sound: SoundDraws | None = None


def draw_state(request: MicroBatchRequest, seed: int) -> U64:
    """Return the beginning of the hashes of each clip's draws, which the purpose of a draw ends."""
    return hash_rng.hash64(seed, request.epoch, request.uids, request.draw_copies)


def draw(
    request: MicroBatchRequest,
    config: ObjectiveConfig,
    words_B: U64,
    *,
    latent: tuple[int, int, int],
    sound: SoundConfig | None = None,
) -> RandomDraws:
    """Draw timesteps, frame masks and dropped captions for the clips of a micro-batch, whose latents have these sizes.

    `words_B` are its `draw_state`. Where the model is told in pixels what is given (`request.masks`), all latent frames
    are generated.
    """
    ratios = {} if request.masks else config.mask_ratios
    uniform_B = torch.from_numpy(hash_rng.uniform(hash_rng.extend(words_B, Purpose.TIMESTEP)))
    ratio = shift_ratio(config, request.shape, latent)
    unshifted_B, time_B = objectives.from_config(config).times(uniform_B, ratio)
    return RandomDraws(
        unshifted_B,
        time_B,
        frame_masks.draw_frame_mask(ratios, latent[0], hash_rng.extend(words_B, Purpose.MASK)),
        dropped_captions(words_B, config),
        None if sound is None else sound_inputs.draw(sound, words_B),
    )


def dropped_captions(words_B: U64, config: ObjectiveConfig) -> NDArray[np.bool_]:
    """Return which clips are trained with the empty caption, `[B]`."""
    return hash_rng.bernoulli(hash_rng.extend(words_B, Purpose.TEXT_DROPOUT), config.caption_dropout)


def normal(shape: tuple[int, ...], seeds: U64, device: torch.device) -> Tensor:
    """Return standard normal noise for each clip, from its own seed; equal on one kind of device and torch version.

    Clips are drawn one by one, since the beginning of a long draw is not the short draw of the same seed.
    """
    drawn_on = machine.exact_device(device)
    generator, noise = torch.Generator(drawn_on), torch.empty(len(seeds), *shape, device=drawn_on)
    for clip, seed in zip(noise, seeds.tolist(), strict=True):
        clip.normal_(generator=generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF))
    return noise.to(device)
