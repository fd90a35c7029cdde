"""Turn a decoded micro-batch into the model's inputs: latents, timesteps, noise, masks, text embeddings.

Every random draw is a function of (seed, epoch, uid, copy, purpose), so it does not depend on rank, batch or order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reelworks.buckets.table import BucketTable
from reelworks.core import hash_rng
from reelworks.core.hash_rng import U64, Purpose
from reelworks.core.shape import Geometry, Shape
from reelworks.data import loader
from reelworks.data.micro_batch import MicroBatch, MicroBatchRequest
from reelworks.diffusion import frame_masks, objectives, timesteps
from reelworks.diffusion.config import ObjectiveConfig
from reelworks.distributed.transfer import to_device
from reelworks.encoders import conditioning, stored_batches
from reelworks.encoders.encoders import LiveEncoder
from reelworks.models.api import DenoiserInputs, TextEmbedding, given
from reelworks.models.expert_pair.config import switch_timestep
from reelworks.recipe.recipe import Recipe
from reelworks.schedule.plan import EpochPlan


def objective_of_step(
    recipe: Recipe, table: BucketTable, geometry: Geometry, *, plan: EpochPlan, row: int, step: int
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
    for bucket, count in loader.batches_of_row(plan, row):
        shape = table.buckets[bucket].shape
        ratio = _shift_ratio(objective, shape, geometry.latent(shape))
        share = timesteps.share_below(switch, objective, ratio)
        low += count * share
        clips += count
    draw = float(hash_rng.uniform(hash_rng.hash64(recipe.seed, step, Purpose.EXPERT)))
    timestep_range = [0.0, switch] if draw * clips < low else [switch, 1000.0]
    return objective.model_copy(update={"timestep_range": timestep_range})


def _shift_ratio(config: ObjectiveConfig, shape: Shape, latent: tuple[int, int, int]) -> float:
    return timesteps.shift_ratio(
        config,
        height=shape.height,
        width=shape.width,
        num_frames=shape.num_frames,
        latent_frames=latent[0],
        latent_area=latent[1] * latent[2],
    )


@dataclass(frozen=True)
class Choices:
    """Random draws of one micro-batch, on the CPU.

    Attributes:
        unshifted_time: `[B]` timesteps before the shift, in [0, 1000].
        time: `[B]` timesteps to train, after the shift.
        frame_mask: `[B, T]` True for a latent frame that is generated, False for a conditioning frame.
        drop_text: `[B]` True for a clip that is trained with the empty caption.
    """

    unshifted_time: Tensor
    time: Tensor
    frame_mask: NDArray[np.bool_]
    drop_text: NDArray[np.bool_]


def _words(work: MicroBatchRequest, seed: int) -> U64:
    """Return the beginning of the hashes of each clip's draws, which the purpose of a draw ends."""
    return hash_rng.hash64(seed, work.epoch, work.uids, work.draw_copies)


def draw(work: MicroBatchRequest, config: ObjectiveConfig, *, seed: int, latent: tuple[int, int, int]) -> Choices:
    """Draw timesteps, frame masks and dropped captions for the clips of a micro-batch, whose latents have these sizes."""
    words_B = _words(work, seed)
    uniform_B = torch.from_numpy(hash_rng.uniform(hash_rng.extend(words_B, Purpose.TIMESTEP)))
    ratio = _shift_ratio(config, work.shape, latent)
    unshifted_B, time_B = objectives.from_config(config).times(uniform_B, ratio)
    return Choices(
        unshifted_B,
        time_B,
        frame_masks.draw_frame_mask(config.mask_ratios, latent[0], hash_rng.extend(words_B, Purpose.MASK)),
        _dropped(words_B, config),
    )


def _dropped(words_B: U64, config: ObjectiveConfig) -> NDArray[np.bool_]:
    return hash_rng.passes(hash_rng.extend(words_B, Purpose.TEXT_DROPOUT), config.caption_dropout)


@dataclass(frozen=True)
class Example:
    """One micro-batch ready for the model.

    Attributes:
        inputs: Inputs of the model, with noised latents.
        x0: `[B, C, T, H, W]` clean latents.
        noise: `[B, C, T, H, W]` noise that was added.
        generated_share: `[B]` share of latent frames that count in the loss.
        counts: `[B]` True for a clip that counts in the loss.
        trained_frames: `[B, T]` True for a latent frame that counts in the loss.
        loss_weight: `[B, T, H, W]` weight of each latent element in its clip's loss; None if all weights are equal.
        uncaptioned: The inputs with the empty caption, if targets are guided.
        rejected: `[B, C, T, H, W]` clean latents of the rejected clips, if there are any.
    """

    inputs: DenoiserInputs
    x0: Tensor
    noise: Tensor
    generated_share: Tensor
    counts: Tensor
    trained_frames: Tensor
    loss_weight: Tensor | None = None
    uncaptioned: DenoiserInputs | None = None
    rejected: Tensor | None = None

    def losses(self, output_BCTHW: Tensor, config: ObjectiveConfig) -> Tensor:
        """Return the loss of each clip, `[B]`, for the model's output."""
        i = self.inputs
        return objectives.from_config(config).losses(
            output_BCTHW, i.latent, self.x0, self.noise, i.time, self.trained_frames, self.loss_weight
        )

    def guided_losses(self, output_BCTHW: Tensor, uncaptioned_BCTHW: Tensor, config: ObjectiveConfig) -> Tensor:
        """Return the loss of each clip, `[B]`, with the guidance of the base in its target.

        For the target v, the base's prediction u without caption and a scale s, the target is u + s (v - u). So the error
        is that of the output plus s - 1 times that of u. A clip whose caption was dropped has the plain target, as
        guidance changes nothing without a caption.
        """
        i, objective, scale = self.inputs, objectives.from_config(config), config.target_guidance_scale
        assert scale is not None
        assert not isinstance(objective, objectives.Iddpm), "the recipe was checked"
        own, base = (
            objective.error(output, i.latent, self.x0, self.noise, i.time)
            for output in (output_BCTHW, uncaptioned_BCTHW)
        )
        share_B = torch.where(i.drop_text, 0.0, scale - 1)
        error = own + share_B.view(-1, 1, 1, 1, 1) * base
        return objective.of_error(error, i.time, self.trained_frames, self.loss_weight)

    def pair(self, config: ObjectiveConfig) -> Example:
        """Return the preferred clips and, after them, the rejected ones, with the same noise, timesteps and conditions."""
        assert self.rejected is not None
        twice = self.inputs.each(lambda value: torch.cat([value] * 2))
        x0, noise = torch.cat([self.x0, self.rejected]), torch.cat([self.noise] * 2)
        frames = torch.cat([self.trained_frames] * 2)
        latent = objectives.from_config(config).noised(x0, noise, twice.time, frames)
        weight = None if self.loss_weight is None else torch.cat([self.loss_weight] * 2)
        share, counts = (torch.cat([each] * 2) for each in (self.generated_share, self.counts))
        return Example(replace(twice, latent=latent), x0, noise, share, counts, frames, weight)

    def distances(self, output_BCTHW: Tensor, base_BCTHW: Tensor, config: ObjectiveConfig) -> Tensor:
        """Return the loss of each clip, `[B]`, with the base model's output as the target."""
        i = self.inputs
        difference = output_BCTHW.float() - base_BCTHW.float()
        return objectives.from_config(config).of_error(difference, i.time, self.trained_frames, self.loss_weight)


def normal(shape: tuple[int, ...], seeds: U64, device: torch.device) -> Tensor:
    """Return standard normal noise for each clip, from its own seed; equal on one kind of device and torch version.

    Clips are drawn one by one, since the beginning of a long draw is not the short draw of the same seed.
    """
    clips = []
    for seed in seeds.tolist():
        generator = torch.Generator(device).manual_seed(int(seed) & 0x7FFFFFFFFFFFFFFF)
        clips.append(torch.randn(shape, generator=generator, device=device))
    return torch.stack(clips)


@dataclass(frozen=True)
class Encoded:
    """Outputs of the encoders for a micro-batch, on the training device: all that takes long in making an example.

    Attributes:
        latent: `[B, C, T, H, W]` clean latents.
        text: Embeddings of the captions, of dropped ones as the model wants them.
        conditions: The last inputs of a denoiser by name; see `models.api.given`.
        empty: Embeddings of the empty caption, if targets are guided.
        rejected: `[B, C, T, H, W]` clean latents of the rejected clips, if there are any.
    """

    latent: Tensor
    text: TextEmbedding
    conditions: Mapping[str, Tensor]
    empty: TextEmbedding | None = None
    rejected: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """Return all tensors."""
        optional = [*(self.empty or ()), *([] if self.rejected is None else [self.rejected])]
        return [self.latent, *self.text, *self.conditions.values(), *optional]


def encode(batch: MicroBatch, encoder: LiveEncoder, config: ObjectiveConfig, *, seed: int) -> Encoded:
    """Encode the clips and captions of a micro-batch, of which some captions are dropped."""
    encoded = _encode(batch, encoder, _dropped(_words(batch.work, seed), config))
    if config.target_guidance_scale is not None:
        encoded = replace(encoded, empty=stored_batches.texts(batch, encoder, [True] * len(batch.work.captions)))
    return encoded


def _encode(batch: MicroBatch, encoder: LiveEncoder, drop_text: NDArray[np.bool_]) -> Encoded:
    values = stored_batches.clip_values(batch, encoder)
    text = stored_batches.texts(batch, encoder, drop_text[: len(batch.work.captions)].tolist())
    conditions = stored_batches.conditions(batch, encoder, values, values["latent"])
    return Encoded(values["latent"], text, conditions, rejected=values.get("rejected"))


def training_example(
    batch: MicroBatch, encoder: LiveEncoder, config: ObjectiveConfig, *, seed: int, encoded: Encoded | None = None
) -> Example:
    """Encode a micro-batch, unless that is done, and draw its timesteps, noise, masks and caption dropout."""
    words_B = _words(batch.work, seed)
    encoded = encoded or encode(batch, encoder, config, seed=seed)
    _, _, *sizes = encoded.latent.shape
    drawn = draw(batch.work, config, seed=seed, latent=(sizes[0], sizes[1], sizes[2]))
    return _example(batch, encoder, config, encoded, drawn, hash_rng.extend(words_B, Purpose.NOISE))


def validation_example(
    batch: MicroBatch, encoder: LiveEncoder, config: ObjectiveConfig, *, seed: int, times: list[float]
) -> Example:
    """Encode one held-out clip, repeated for each timestep, with noise that is the same in all validations and runs."""
    n = len(times)
    time = torch.tensor(times, dtype=torch.float32)
    encoded = _encode(batch, encoder, np.zeros(n, dtype=np.bool_))
    frames = encoded.latent.shape[2]
    fixed = Choices(time, time, np.ones((n, frames), dtype=np.bool_), np.zeros(n, dtype=np.bool_))
    noise_seeds = hash_rng.hash64(seed, "validation", batch.work.uids, np.arange(n), Purpose.NOISE)
    return _example(batch, encoder, config, encoded, fixed, noise_seeds)


def _crop(work: MicroBatchRequest, config: ObjectiveConfig) -> Tensor:
    """Return the input `crop` of each clip, `[B, 4]` float32."""
    boxes = [[work.shape.height, work.shape.width, 0, 0]] * len(work.uids)
    if config.crop_conditioning == "file" and work.crops:
        boxes = [[c.original_height, c.original_width, c.top, c.left] for c in work.crops]
    return torch.tensor(boxes, dtype=torch.float32)


def _example(
    batch: MicroBatch,
    encoder: LiveEncoder,
    config: ObjectiveConfig,
    encoded: Encoded,
    drawn: Choices,
    noise_seeds: U64,
) -> Example:
    work, device, n = batch.work, encoder.device, len(drawn.time)
    x0 = encoded.latent.expand(n, -1, -1, -1, -1)
    time, frame_mask = (to_device(value, device) for value in (drawn.time, torch.from_numpy(drawn.frame_mask)))
    noise = normal(tuple(x0.shape[1:]), noise_seeds, device)
    text = encoded.text
    fps = to_device(torch.tensor(work.fps, dtype=torch.float32), device)
    conditions = dict(encoded.conditions)
    noised = frame_mask
    if encoder.conditioning.frames_beside_noise:
        noised, conditions["condition"] = torch.ones_like(frame_mask), x0
    inputs = DenoiserInputs(
        latent=objectives.from_config(config).noised(x0, noise, time, noised),
        time=time,
        text=text.tokens.expand(n, -1, -1),
        text_mask=text.mask.expand(n, -1),
        pooled=text.pooled.expand(n, -1),
        guidance=torch.ones(n, device=device),
        frame_mask=frame_mask,
        fps=fps.expand(n),
        height=torch.full((n,), float(work.shape.height), device=device),
        width=torch.full((n,), float(work.shape.width), device=device),
        crop=to_device(_crop(work, config), device).expand(n, -1),
        drop_text=to_device(torch.from_numpy(drawn.drop_text), device),
        **given(conditions, n),
    )
    counts = to_device(batch.is_valid, device).expand(n)
    weight = None
    if "loss_mask" in batch.companions:
        mask = to_device(batch.companions["loss_mask"], device)
        weight = conditioning.weights(mask, encoder.autoencoder.geometry).expand(n, -1, -1, -1)
        # A mask may cover conditioning frames only: such a clip has no loss, and no weight in the step.
        counts = counts & (weight.amax(dim=(2, 3)) * noised).any(dim=1)
    uncaptioned = None
    if (empty := encoded.empty) is not None:
        named = {"text": empty.tokens, "text_mask": empty.mask, "pooled": empty.pooled}
        uncaptioned = replace(inputs, **named, drop_text=torch.ones_like(inputs.drop_text))
    share = noised.float().mean(dim=1)
    return Example(inputs, x0, noise, share, counts, noised, weight, uncaptioned, encoded.rejected)
