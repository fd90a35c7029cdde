"""Turn a decoded micro-batch into the model's inputs: latents, timesteps, noise, masks, text embeddings.

Every random draw is a function of (seed, epoch, uid, copy, purpose), so it does not depend on rank, batch or order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

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
from reelworks.models.sound.config import SoundConfig
from reelworks.precision.boundary import DtypeBoundary
from reelworks.recipe.recipe import Recipe
from reelworks.schedule.plan import EpochPlan
from reelworks.train import sound_inputs
from reelworks.train.sound_inputs import SoundDraws, SoundTarget


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


def draw_state(work: MicroBatchRequest, seed: int) -> U64:
    """Return the beginning of the hashes of each clip's draws, which the purpose of a draw ends."""
    return hash_rng.hash64(seed, work.epoch, work.uids, work.draw_copies)


def draw(
    work: MicroBatchRequest,
    config: ObjectiveConfig,
    words_B: U64,
    *,
    latent: tuple[int, int, int],
    sound: SoundConfig | None = None,
) -> RandomDraws:
    """Draw timesteps, frame masks and dropped captions for the clips of a micro-batch, whose latents have these sizes.

    `words_B` are its `draw_state`. Where the model is told in pixels what is given (`work.masks`), all latent frames
    are generated.
    """
    ratios = {} if work.masks else config.mask_ratios
    uniform_B = torch.from_numpy(hash_rng.uniform(hash_rng.extend(words_B, Purpose.TIMESTEP)))
    ratio = _shift_ratio(config, work.shape, latent)
    unshifted_B, time_B = objectives.from_config(config).times(uniform_B, ratio)
    return RandomDraws(
        unshifted_B,
        time_B,
        frame_masks.draw_frame_mask(ratios, latent[0], hash_rng.extend(words_B, Purpose.MASK)),
        _dropped(words_B, config),
        None if sound is None else sound_inputs.draw(sound, words_B),
    )


def _dropped(words_B: U64, config: ObjectiveConfig) -> NDArray[np.bool_]:
    return hash_rng.bernoulli(hash_rng.extend(words_B, Purpose.TEXT_DROPOUT), config.caption_dropout)


class Predicted(NamedTuple):
    """Outputs of a network for the picture and, with sound, for the sound."""

    picture: Tensor
    sound: Tensor | None = None

    @classmethod
    def from_inputs(
        cls, boundary: DtypeBoundary[DenoiserInputs], inputs: DenoiserInputs, *, at_least: int = 0
    ) -> Predicted:
        """Run a network with at least so many clips: further ones are copies, whose outputs are dropped."""
        count, filled = len(inputs.time), filled_up(inputs, at_least)
        outputs = boundary.both(filled) if inputs.sound.shape[1] else (boundary(filled),)
        return cls(*(output[:count] for output in outputs)) if count < at_least else cls(*outputs)

    @classmethod
    def joined(cls, parts: Sequence[Predicted]) -> Predicted:
        """Return the outputs of parts of a micro-batch as one."""
        sounds = [part.sound for part in parts if part.sound is not None]
        return cls(torch.cat([part.picture for part in parts]), torch.cat(sounds) if sounds else None)


def filled_up(inputs: DenoiserInputs, count: int) -> DenoiserInputs:
    """Return inputs of at least so many clips, of which further ones are copies of the last."""
    missing = count - len(inputs.time)
    if missing <= 0:
        return inputs
    return inputs.each(lambda value: torch.cat([value, value[-1:].expand(missing, *value.shape[1:])]))


@dataclass(frozen=True)
class Example:
    """One micro-batch ready for the model.

    Attributes:
        inputs: Inputs of the model, with noised latents.
        x0: `[B, C, T, H, W]` clean latents.
        noise: `[B, C, T, H, W]` noise that was added.
        generated_share: `[B]` share of latent frames that count in the loss.
        valid_mask: `[B]` True for a clip that counts in the loss.
        trained_frames: `[B, T]` True for a latent frame that counts in the loss; None if all of them do.
        loss_weight: `[B, T, H, W]` weight of each latent element in its clip's loss; None if all weights are equal.
        uncaptioned: The inputs with the empty caption, if targets are guided.
        rejected: `[B, C, T, H, W]` clean latents of the rejected clips, if there are any.
        sound: What the sound is trained towards; None if there is none.
    """

    inputs: DenoiserInputs
    x0: Tensor
    noise: Tensor
    generated_share: Tensor
    valid_mask: Tensor
    trained_frames: Tensor | None
    loss_weight: Tensor | None = None
    uncaptioned: DenoiserInputs | None = None
    rejected: Tensor | None = None
    sound: SoundTarget | None = None

    def losses(self, output: Predicted, config: ObjectiveConfig) -> Tensor:
        """Return the loss of each clip, `[B]`, for the model's output; with sound, the sum over what is generated."""
        i, objective = self.inputs, objectives.from_config(config)
        losses_B = objective.losses(
            output.picture, i.latent, self.x0, self.noise, self._times(), self.trained_frames, self.loss_weight
        )
        if self.sound is None or output.sound is None:
            return losses_B
        time, target = sound_inputs.loss_times(i.sound_time, i.sound_mask), self.sound
        of_sound_B = objective.losses(output.sound, i.sound, target.x0, target.noise, time, i.sound_mask)
        return losses_B + target.loss_weight * of_sound_B

    def _times(self) -> Tensor:
        """Return the timesteps by which losses of pictures are weighted."""
        time, frames = self.inputs.time, self.trained_frames
        return time if self.sound is None or frames is None else sound_inputs.loss_times(time, frames)

    def guided_losses(self, output: Predicted, uncaptioned: Predicted, config: ObjectiveConfig) -> Tensor:
        """Return the loss of each clip, `[B]`, with the guidance of the base in its target.

        For the target v, the base's prediction u without caption and a scale s, the target is u + s (v - u). So the error
        is that of the output plus s - 1 times that of u. A clip whose caption was dropped has the plain target, as
        guidance changes nothing without a caption.
        """
        i, objective, scale = self.inputs, objectives.from_config(config), config.target_guidance_scale
        assert scale is not None
        assert not isinstance(objective, objectives.Iddpm), "the recipe was checked"
        own, base = (
            objective.error(each, i.latent, self.x0, self.noise, i.time)
            for each in (output.picture, uncaptioned.picture)
        )
        share_B = torch.where(i.drop_text, 0.0, scale - 1)
        error = own + share_B.view(-1, 1, 1, 1, 1) * base
        return objective.of_error(error, i.time, self.trained_frames, self.loss_weight)

    def pair(self, config: ObjectiveConfig) -> Example:
        """Return the preferred clips and, after them, the rejected ones, with the same noise, timesteps and conditions."""
        assert self.rejected is not None
        twice = self.inputs.each(lambda value: torch.cat([value] * 2))
        x0, noise = torch.cat([self.x0, self.rejected]), torch.cat([self.noise] * 2)
        frames = None if self.trained_frames is None else torch.cat([self.trained_frames] * 2)
        latent = objectives.from_config(config).noised(x0, noise, twice.time, frames)
        weight = None if self.loss_weight is None else torch.cat([self.loss_weight] * 2)
        share, counts = (torch.cat([each] * 2) for each in (self.generated_share, self.valid_mask))
        return Example(replace(twice, latent=latent), x0, noise, share, counts, frames, weight)

    def distances(self, output: Predicted, base: Predicted, config: ObjectiveConfig) -> Tensor:
        """Return the loss of each clip, `[B]`, with the base model's output as the target."""
        i, objective = self.inputs, objectives.from_config(config)
        difference = output.picture.float() - base.picture.float()
        losses_B = objective.of_error(difference, self._times(), self.trained_frames, self.loss_weight)
        if self.sound is None or output.sound is None or base.sound is None:
            return losses_B
        time = sound_inputs.loss_times(i.sound_time, i.sound_mask)
        of_sound_B = objective.of_error(output.sound.float() - base.sound.float(), time, i.sound_mask)
        return losses_B + self.sound.loss_weight * of_sound_B


def normal(shape: tuple[int, ...], seeds: U64, device: torch.device) -> Tensor:
    """Return standard normal noise for each clip, from its own seed; equal on one kind of device and torch version.

    Clips are drawn one by one, since the beginning of a long draw is not the short draw of the same seed.
    """
    generator, noise = torch.Generator(device), torch.empty(len(seeds), *shape, device=device)
    for clip, seed in zip(noise, seeds.tolist(), strict=True):
        clip.normal_(generator=generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF))
    return noise


@dataclass(frozen=True)
class EncodedBatch:
    """Outputs of the encoders for a micro-batch, on the training device: all that takes long in making an example.

    Attributes:
        latent: `[B, C, T, H, W]` clean latents.
        text: Embeddings of the captions, of dropped ones as the model wants them.
        conditions: The last inputs of a denoiser by name; see `models.api.given`.
        empty: Embeddings of the empty caption, if targets are guided.
        rejected: `[B, C, T, H, W]` clean latents of the rejected clips, if there are any.
        sound: `[B, F, N, 1, 1]` clean latents of the sound; None if there is none.
    """

    latent: Tensor
    text: TextEmbedding
    conditions: Mapping[str, Tensor]
    empty: TextEmbedding | None = None
    rejected: Tensor | None = None
    sound: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """Return all tensors."""
        single = [each for each in (self.rejected, self.sound) if each is not None]
        return [self.latent, *self.text, *self.conditions.values(), *(self.empty or ()), *single]


def encode(batch: MicroBatch, encoder: LiveEncoder, config: ObjectiveConfig, *, seed: int) -> EncodedBatch:
    """Encode the clips and captions of a micro-batch, of which some captions are dropped."""
    return _encode_drawn(batch, encoder, config, draw_state(batch.request, seed))


def _encode_drawn(batch: MicroBatch, encoder: LiveEncoder, config: ObjectiveConfig, words_B: U64) -> EncodedBatch:
    encoded = _encode(batch, encoder, _dropped(words_B, config))
    if config.target_guidance_scale is not None:
        encoded = replace(encoded, empty=stored_batches.texts(batch, encoder, [True] * len(batch.request.captions)))
    return encoded


def _encode(batch: MicroBatch, encoder: LiveEncoder, drop_text: NDArray[np.bool_]) -> EncodedBatch:
    values = stored_batches.clip_values(batch, encoder)
    text = stored_batches.texts(batch, encoder, drop_text[: len(batch.request.captions)].tolist())
    conditions = stored_batches.conditions(batch, encoder, values, values["latent"])
    return EncodedBatch(values["latent"], text, conditions, rejected=values.get("rejected"), sound=values.get("sound"))


def training_example(
    batch: MicroBatch, encoder: LiveEncoder, config: ObjectiveConfig, *, seed: int, encoded: EncodedBatch | None = None
) -> Example:
    """Encode a micro-batch, unless that is done, and draw its timesteps, noise, masks and caption dropout."""
    words_B = draw_state(batch.request, seed)
    encoded = encoded or _encode_drawn(batch, encoder, config, words_B)
    _, _, *sizes = encoded.latent.shape
    sound = None if encoder.sound is None else encoder.sound.config
    drawn = draw(batch.request, config, words_B, latent=(sizes[0], sizes[1], sizes[2]), sound=sound)
    seeds = hash_rng.extend(words_B, Purpose.NOISE), sound_inputs.noise_seeds(words_B)
    return _example(batch, encoder, config, encoded, drawn, *seeds)


def validation_example(
    batch: MicroBatch, encoder: LiveEncoder, config: ObjectiveConfig, *, seed: int, times: list[float]
) -> Example:
    """Encode one held-out clip, repeated for each timestep, with noise that is the same in all validations and runs."""
    n = len(times)
    time = torch.tensor(times, dtype=torch.float32)
    encoded = _encode(batch, encoder, np.zeros(n, dtype=np.bool_))
    frames = encoded.latent.shape[2]
    sound = None if encoder.sound is None else sound_inputs.both(n)
    fixed = RandomDraws(time, time, np.ones((n, frames), dtype=np.bool_), np.zeros(n, dtype=np.bool_), sound)
    words_B = hash_rng.hash64(seed, "validation", batch.request.uids, np.arange(n))
    noise_seeds = hash_rng.hash64(seed, "validation", batch.request.uids, np.arange(n), Purpose.NOISE)
    return _example(batch, encoder, config, encoded, fixed, noise_seeds, sound_inputs.noise_seeds(words_B))


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
    encoded: EncodedBatch,
    drawn: RandomDraws,
    noise_seeds: U64,
    sound_seeds: U64,
) -> Example:
    work, device, n = batch.request, encoder.device, len(drawn.time)
    x0 = conditioning.prepend_sources(encoded.latent, encoded.conditions).expand(n, -1, -1, -1, -1)
    sound = None if encoded.sound is None else _sound(work, encoder, config, encoded.sound, drawn, sound_seeds)
    drawn = drawn if sound is None else sound.drawn
    time, frame_mask = (to_device(value, device) for value in (drawn.time, torch.from_numpy(drawn.frame_mask)))
    sources = x0.shape[2] - frame_mask.shape[1]  # that are frames
    if sources:
        frame_mask = pad(frame_mask, (sources, 0), value=True)
    noise = normal(tuple(x0.shape[1:]), noise_seeds, device)
    text = encoded.text
    fps = to_device(torch.tensor(work.fps, dtype=torch.float32), device)
    conditions = dict(encoded.conditions)
    trained_frames = None if drawn.frame_mask.all() else frame_mask
    if encoder.conditioning.frames_beside_noise:
        shown = condition_latents(x0, frame_mask, conditions["first_frame"])
        trained_frames = None
        conditions |= {"condition": shown, "first_frame": x0[:, :0]}
    inputs = DenoiserInputs(
        latent=objectives.from_config(config).noised(x0, noise, time, trained_frames),
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
        **({} if sound is None else sound.inputs),
    )
    valid_mask = to_device(batch.is_valid, device).expand(n)
    weight = None
    if "loss_mask" in batch.companions:
        mask = to_device(batch.companions["loss_mask"], device)
        weight = conditioning.weights(mask, encoder.autoencoder.geometry).expand(n, -1, -1, -1)
        weight = pad(weight, (0, 0, 0, 0, sources, 0))
        # A mask may cover conditioning frames only: such a clip has no loss, and no weight in the step.
        weight_BT = weight.amax(dim=(2, 3))
        valid_mask = valid_mask & (weight_BT if trained_frames is None else weight_BT * trained_frames).any(dim=1)
    uncaptioned = None
    if (empty := encoded.empty) is not None:
        tokens, mask, pooled = empty
        dropped = torch.ones_like(inputs.drop_text)
        uncaptioned = replace(inputs, text=tokens, text_mask=mask, pooled=pooled, drop_text=dropped)
    share = torch.ones(n, device=device) if trained_frames is None else trained_frames.float().mean(dim=1)
    target = None
    if sound is not None:
        share, target = torch.where(share > 0, share, inputs.sound_mask.float().mean(dim=1)), sound.target
    rejected = None if encoded.rejected is None else conditioning.prepend_sources(encoded.rejected, encoded.conditions)
    return Example(inputs, x0, noise, share, valid_mask, trained_frames, weight, uncaptioned, rejected, target)


def condition_latents(x0: Tensor, frame_mask_BN: Tensor, first_frame: Tensor) -> Tensor:
    """Return the latents that condition frames are taken from: a first one alone is, if it is encoded so, a picture's."""
    if not first_frame.shape[1] or x0.shape[2] == 1:
        return x0
    is_alone = (frame_mask_BN[:, 1] & ~frame_mask_BN[:, 0]).view(-1, 1, 1, 1, 1)
    return torch.cat([torch.where(is_alone, first_frame[:, :, :1], x0[:, :, :1]), x0[:, :, 1:]], dim=2)


class _Sound(NamedTuple):
    """The part of an example that is about sound."""

    drawn: RandomDraws  # with pictures that are given
    inputs: dict[str, Any]
    target: SoundTarget


def _sound(
    work: MicroBatchRequest,
    encoder: LiveEncoder,
    config: ObjectiveConfig,
    latent_BFN11: Tensor,
    drawn: RandomDraws,
    seeds: U64,
) -> _Sound:
    assert encoder.sound is not None
    assert drawn.sound is not None
    track, device, chosen, n = encoder.sound, encoder.device, drawn.sound, len(drawn.time)
    picture_B, sound_B = torch.from_numpy(chosen.picture), torch.from_numpy(chosen.sound)
    objective, none = objectives.from_config(config), drawn.time.new_zeros(())
    time_B, geometry = drawn.time, encoder.autoencoder.geometry
    ratio = _shift_ratio(config, work.shape, geometry.latent(work.shape))
    if chosen.uniform is None:
        time_B = sound_inputs.with_own_shift(time_B, ratio, track.config)
    else:
        ratio = track.config.timestep_shift or ratio
        time_B = objective.times(torch.from_numpy(chosen.uniform), ratio)[1].to(drawn.time.dtype)
    mask_BN = np.ones((n, latent_BFN11.shape[2]), dtype=np.bool_)
    if track.config.follow_frames:
        mask_BN = drawn.frame_mask[:, sound_inputs.frame_of_sound(track.spec, geometry, work.shape)]
    mask = to_device(torch.from_numpy(mask_BN & chosen.sound[:, None]), device)
    time = to_device(torch.where(sound_B, time_B, none), device)
    x0 = latent_BFN11.expand(n, -1, -1, -1, -1)
    noise = normal(tuple(x0.shape[1:]), seeds, device)
    inputs = {"sound": objective.noised(x0, noise, time, mask), "sound_time": time, "sound_mask": mask}
    drawn = replace(
        drawn,
        time=torch.where(picture_B, drawn.time, none),
        frame_mask=drawn.frame_mask & chosen.picture[:, None],
    )
    return _Sound(drawn, inputs, SoundTarget(x0, noise, track.config.loss_weight))
