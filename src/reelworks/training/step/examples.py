"""Turn an encoded micro-batch into the model's inputs and targets, and its outputs into losses."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from reelworks.core import hash_rng
from reelworks.core.arrays import U64
from reelworks.core.hash_rng import Purpose
from reelworks.data.buckets.table import BucketTable
from reelworks.data.loader.micro_batch import MicroBatch, MicroBatchRequest
from reelworks.data.loader.upload import to_device
from reelworks.data.schedule.plan import EpochPlan
from reelworks.models.api import DenoiserInputs, SoundInputs, given
from reelworks.models.objectives import objectives
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.training.encoding import conditioning
from reelworks.training.encoding.batch_encoder import BatchEncoder, EncodedBatch
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import draws, noising, sound_inputs
from reelworks.training.step.draws import RandomDraws
from reelworks.training.step.sound_inputs import SoundTarget

# Losses of two kinds of clips differ in size, and are not compared.
_GENERATED = ("", "sound only", "picture only")  # of clips with sound, both or one of them
_TARGETS = ("", "guided", "preserved")  # the clip itself, with the base's guidance, or the base's output
KINDS = tuple(", ".join(filter(None, names)) for names in itertools.product(_GENERATED, _TARGETS))


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
        outputs = (boundary(filled),) if inputs.sound is None else boundary.both(filled)
        return cls(*(output[:count] for output in outputs)) if count < at_least else cls(*outputs)

    @classmethod
    def joined(cls, parts: Sequence[Predicted]) -> Predicted:
        """Return the outputs of parts of a micro-batch as one."""
        sounds = [part.sound for part in parts if part.sound is not None]
        return cls(torch.cat([part.picture for part in parts]), torch.cat(sounds) if sounds else None)

    def halves(self) -> tuple[Predicted, Predicted]:
        """Return the outputs of the first half of the clips, and those of the others."""
        first, others = zip(*(output.chunk(2) for output in self if output is not None), strict=True)
        return Predicted(*first), Predicted(*others)


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
        encoded: The micro-batch, encoded.
        objective: Objective of its step.
        inputs: Inputs of the model, with noised latents.
        x0: `[B, C, T, H, W]` clean latents.
        noise: `[B, C, T, H, W]` noise that is trained on.
        added_noise: `[B, C, T, H, W]` noise that was added, which may have an input perturbation, too.
        generated_share: `[B]` share of latent frames that count in the loss.
        valid_mask: `[B]` True for a clip that counts in the loss.
        trained_frames: `[B, T]` True for a latent frame that counts in the loss; None if all of them do.
        loss_weight: `[B, T, H, W]` weight of each latent element in its clip's loss; None if all weights are equal.
        sound: What the sound is trained towards; None if there is none.
    """

    encoded: EncodedBatch
    objective: ObjectiveConfig
    inputs: DenoiserInputs
    x0: Tensor
    noise: Tensor
    added_noise: Tensor
    generated_share: Tensor
    valid_mask: Tensor
    trained_frames: Tensor | None
    loss_weight: Tensor | None = None
    sound: SoundTarget | None = None

    @property
    def batch(self) -> MicroBatch:
        """The micro-batch."""
        return self.encoded.batch

    def losses(self, output: Predicted, base: Predicted | None = None) -> Tensor:
        """Return the loss of each clip, `[B]`, for the model's output; with sound, the sum over what is generated.

        With the output of a `base`, that is the target in place of the clip's own.
        """
        i, frames, objective = self.inputs, self.trained_frames, objectives.from_config(self.objective)
        base_picture, base_sound = base or (None, None)
        time = i.time if frames is None else sound_inputs.loss_times(i.time, frames)
        losses_B = objective.losses(
            output.picture, i.latent, self.x0, self.noise, time, frames, self.loss_weight, base=base_picture
        )
        if i.sound is None or self.sound is None or output.sound is None:
            return losses_B
        heard, target, time = i.sound, self.sound, sound_inputs.loss_times(i.sound.time, i.sound.mask)
        of_sound_B = objective.losses(
            output.sound, heard.latent, target.x0, target.noise, time, heard.mask, base=base_sound
        )
        return losses_B + target.loss_weight * of_sound_B

    def uncaptioned(self) -> DenoiserInputs:
        """Return the inputs with the empty caption, which was embedded if anything asks for it."""
        assert self.encoded.empty is not None
        i, n = self.inputs, len(self.inputs.time)
        tokens, mask, pooled = (part.expand(n, *part.shape[1:]) for part in self.encoded.empty)
        return replace(i, text=tokens, text_mask=mask, pooled=pooled, drop_text=torch.ones_like(i.drop_text))


@dataclass(frozen=True)
class ExampleBuilder:
    """Make examples of micro-batches for training: encode them, and draw timesteps, noise, masks and dropped captions.

    Captions are dropped by the same draws in both methods, on which the timesteps of a step have no effect.
    """

    recipe: Recipe
    table: BucketTable
    encoder: BatchEncoder[Any]

    def encode(self, batch: MicroBatch) -> EncodedBatch:
        """Encode the clips and captions of a micro-batch, of which some captions are dropped."""
        config = self.recipe.objective
        dropped = draws.dropped_captions(draws.draw_state(batch.request, self.recipe.seed), config)
        return self.encoder.encode(batch, dropped.tolist(), guided=config.target_guidance_scale is not None)

    def of_step(
        self, batches: Iterable[EncodedBatch], *, plan: EpochPlan, plan_step: int, step: int
    ) -> Iterator[Example]:
        """Yield the examples of step `plan_step` of a plan, which follows `step` done ones of the run."""
        geometry = self.encoder.encoders.autoencoder.geometry
        objective = draws.objective_of_step(
            self.recipe, self.table, geometry, plan=plan, plan_step=plan_step, step=step
        )
        for encoded in batches:
            yield self.build(encoded, objective)

    def build(self, encoded: EncodedBatch, objective: ObjectiveConfig) -> Example:
        """Return the example of an encoded micro-batch; repeated calls return equal ones."""
        encoders, request = self.encoder.encoders, encoded.batch.request
        words_B = draws.draw_state(request, self.recipe.seed)
        _, _, frames, height, width = encoded.latent.shape
        sound = None if encoders.sound is None else encoders.sound.config
        drawn = draws.draw(request, objective, words_B, latent=(frames, height, width), sound=sound)
        return _example(encoded, encoders, objective, drawn, words_B)


def validation_example(
    batch: MicroBatch, encoder: BatchEncoder[Any], config: ObjectiveConfig, *, seed: int, times: list[float]
) -> Example:
    """Encode one held-out clip, repeated for each timestep, with noise that is the same in all validations and runs."""
    words_B = hash_rng.hash64(seed, "validation", batch.request.uids, np.arange(len(times)))
    return fixed_example(batch, encoder, config, words_B, np.array(times))


def fixed_example(
    batch: MicroBatch,
    encoder: BatchEncoder[Any],
    config: ObjectiveConfig,
    words_B: U64,
    times: NDArray[np.float64],
    *,
    guided: bool = False,
) -> Example:
    """Encode clips with their captions at given timesteps, all of whose frames are generated, with noise by `words_B`.

    A single clip is repeated for each of the timesteps. `guided` also gives the inputs with the empty caption.
    """
    n = len(times)
    time = torch.tensor(times, dtype=torch.float32)
    encoded = encoder.encode(batch, [False] * len(batch.request.captions), guided=guided)
    frames = encoded.latent.shape[2]
    sound = None if encoder.encoders.sound is None else sound_inputs.both(n)
    fixed = RandomDraws(time, time, np.ones((n, frames), dtype=np.bool_), np.zeros(n, dtype=np.bool_), sound)
    return _example(encoded, encoder.encoders, config, fixed, words_B)


def _example(
    encoded: EncodedBatch, encoders: FrozenEncoders, config: ObjectiveConfig, drawn: RandomDraws, words_B: U64
) -> Example:
    batch, device, n = encoded.batch, encoders.device, len(drawn.time)
    seeds = hash_rng.extend(words_B, Purpose.NOISE)
    heard: SoundInputs | None = None
    of_sound: SoundTarget | None = None
    if encoded.sound is not None:
        drawn, heard, of_sound = _sound(encoded.sound, batch.request, encoders, config, drawn, words_B)
    x0 = conditioning.prepend_sources(encoded.latent, encoded.conditions).expand(n, -1, -1, -1, -1)
    # Sources that are frames are noised and generated with the clip, and have no weight where it has a loss mask.
    source_frames = x0.shape[2] - drawn.frame_mask.shape[1]
    frame_mask = pad(to_device(torch.from_numpy(drawn.frame_mask), device), (source_frames, 0), value=True)
    is_noised_whole = drawn.frame_mask.all() or encoders.conditioning.frames_beside_noise
    trained_frames = None if is_noised_whole else frame_mask
    time, (trained_noise, added_noise) = to_device(drawn.time, device), noising.of_clips(config, x0, seeds)
    inputs = DenoiserInputs(
        latent=objectives.from_config(config).noised(x0, added_noise, time, trained_frames),
        time=time,
        text=encoded.text.tokens.expand(n, -1, -1),
        text_mask=encoded.text.mask.expand(n, -1),
        pooled=encoded.text.pooled.expand(n, -1),
        guidance=torch.ones(n, device=device),
        frame_mask=frame_mask,
        drop_text=to_device(torch.from_numpy(drawn.drop_text), device),
        **_sizes(batch.request, config, n, device),
        **given(_conditions(encoded, encoders, x0, frame_mask, seeds), n),
        sound=heard,
    )
    weight = _loss_weight(batch, encoders, n, source_frames)
    # A mask may show given frames alone, also beside sound that is given: such a clip has no weight in the step.
    counted_BT = frame_mask if trained_frames is not None else torch.ones_like(frame_mask)
    counted_BT = counted_BT if weight is None else counted_BT & weight.any(dim=3).any(dim=2)
    heard_BN = counted_BT[:, :0] if heard is None else heard.mask
    share = torch.ones(n, device=device) if trained_frames is None else trained_frames.float().mean(dim=1)
    if heard is not None:
        share = torch.where(share > 0, share, heard.mask.float().mean(dim=1))
    return Example(
        encoded,
        config,
        inputs,
        x0,
        trained_noise,
        added_noise,
        generated_share=share,
        valid_mask=to_device(batch.is_valid, device) & torch.cat([counted_BT, heard_BN], dim=1).any(dim=1),
        trained_frames=trained_frames,
        loss_weight=weight,
        sound=of_sound,
    )


def _sizes(request: MicroBatchRequest, config: ObjectiveConfig, n: int, device: torch.device) -> dict[str, Any]:
    """Return the inputs that tell rate, size and crop of `n` clips."""
    crops = [[request.shape.height, request.shape.width, 0, 0]] * len(request.uids)
    if config.crop_conditioning == "file" and request.crops:
        crops = [[c.original_height, c.original_width, c.top, c.left] for c in request.crops]
    return {
        "fps": to_device(torch.tensor(request.fps, dtype=torch.float32), device).expand(n),
        "height": torch.full((n,), float(request.shape.height), device=device),
        "width": torch.full((n,), float(request.shape.width), device=device),
        "crop": to_device(torch.tensor(crops, dtype=torch.float32), device).expand(n, -1),
    }


def _conditions(
    encoded: EncodedBatch, encoders: FrozenEncoders, x0: Tensor, frame_mask_BN: Tensor, seeds: U64
) -> dict[str, Tensor]:
    """Return the conditions of clips; a network that sees given frames beside the noise has them in its `condition`."""

    def noise(name: str, value: Tensor) -> Tensor:
        own = hash_rng.extend(seeds[: len(value)], Purpose.GIVEN_NOISE, name)
        return draws.normal(tuple(value.shape[1:]), own, value.device)

    conditions = conditioning.with_noise(encoders, encoded.conditions, noise)
    if not encoders.conditioning.frames_beside_noise:
        return conditions
    shown, first_frame = x0, conditions.pop("first_frame", None)
    if first_frame is not None and x0.shape[2] > 1:
        # A first frame that is given alone is encoded as a picture is.
        is_alone = (frame_mask_BN[:, 1] & ~frame_mask_BN[:, 0]).view(-1, 1, 1, 1, 1)
        shown = torch.cat([torch.where(is_alone, first_frame[:, :, :1], x0[:, :, :1]), x0[:, :, 1:]], dim=2)
    return conditions | {"condition": shown}


def _loss_weight(batch: MicroBatch, encoders: FrozenEncoders, n: int, source_frames: int) -> Tensor | None:
    """Return the weight of each latent element of `n` clips, `[B, T, H, W]`; None without loss masks."""
    if "loss_mask" not in batch.companions:
        return None
    mask = to_device(batch.companions["loss_mask"], encoders.device)
    weight = conditioning.weights(mask, encoders.autoencoder.geometry).expand(n, -1, -1, -1)
    return pad(weight, (0, 0, 0, 0, source_frames, 0))


def _sound(
    latent_BFN11: Tensor,
    request: MicroBatchRequest,
    encoders: FrozenEncoders,
    config: ObjectiveConfig,
    drawn: RandomDraws,
    words_B: U64,
) -> tuple[RandomDraws, SoundInputs, SoundTarget]:
    """Return the draws with pictures that are given, and what the network gets of the sound and is to say of it."""
    assert encoders.sound is not None
    assert drawn.sound is not None
    track, device, chosen, n = encoders.sound, encoders.device, drawn.sound, len(drawn.time)
    picture_B, sound_B = torch.from_numpy(chosen.picture), torch.from_numpy(chosen.sound)
    objective, none = objectives.from_config(config), drawn.time.new_zeros(())
    geometry = encoders.autoencoder.geometry
    ratio = draws.shift_ratio(config, request.shape, geometry.latent(request.shape))
    time_B = sound_inputs.times(chosen, drawn.time, ratio, track.config.timestep_shift, config)
    mask_BN = np.ones((n, latent_BFN11.shape[2]), dtype=np.bool_)
    if track.config.follow_frames:
        mask_BN = drawn.frame_mask[:, sound_inputs.frame_of_sound(track.spec, geometry, request.shape)]
    mask = to_device(torch.from_numpy(mask_BN & chosen.sound[:, None]), device)
    time = to_device(torch.where(sound_B, time_B, none), device)
    x0 = latent_BFN11.expand(n, -1, -1, -1, -1)
    noise = draws.normal(tuple(x0.shape[1:]), hash_rng.extend(words_B, Purpose.SOUND, sound_inputs.NOISE), device)
    frame_mask = drawn.frame_mask & chosen.picture[:, None]
    drawn = replace(drawn, time=torch.where(picture_B, drawn.time, none), frame_mask=frame_mask)
    noised = SoundInputs(objective.noised(x0, noise, time, mask), time, mask)
    return drawn, noised, SoundTarget(x0, noise, track.config.loss_weight)


def kinds_of(example: Example) -> Tensor:
    """Return the index in `KINDS` of each clip, `[B]` integers on its device."""
    i, preserved = example.inputs, example.batch.request.target_is_base
    kind_B = torch.zeros_like(i.drop_text, dtype=torch.long)
    if example.objective.target_guidance_scale is not None:
        kind_B = kind_B + ~i.drop_text  # without a caption, guidance changes nothing
    if any(preserved):
        kind_B = torch.where(to_device(torch.tensor(preserved), kind_B.device), 2, kind_B)
    if i.sound is not None:
        generated_B = torch.where(i.sound.mask.any(dim=1), 0, 2)
        kind_B = kind_B + len(_TARGETS) * torch.where(i.frame_mask.any(dim=1), generated_B, 1)
    return kind_B


def name_of_kinds(kinds: Collection[int], objective: ObjectiveConfig, recipe: ObjectiveConfig) -> str:
    """Return kinds of a step's clips in words, with the timesteps of its expert; empty for plain clips at all timesteps."""
    low, high = objective.timestep_range
    expert = "" if objective.timestep_range == recipe.timestep_range else f"timesteps {low:g} to {high:g}"
    names = [KINDS[kind] or "plain" * (len(kinds) > 1) for kind in sorted(kinds)]
    return ", ".join(filter(None, [expert, " and ".join(names)]))
