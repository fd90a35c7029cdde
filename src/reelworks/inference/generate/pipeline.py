"""Generate frames from prompts with our own samplers, the model behind its boundary, and its encoders."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reelworks.core import machine, units
from reelworks.core.arrays import Frames
from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.data.catalog.sources import SOURCES
from reelworks.data.media import decode
from reelworks.inference.generate import conditions, defaults
from reelworks.inference.generate.conditions import Conditions
from reelworks.inference.generate.writers import Sound
from reelworks.models.api import DenoiserInputs, SoundInputs, given
from reelworks.models.objectives import rectified_flow
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.models.objectives.objectives import PREDICTIONS
from reelworks.models.objectives.samplers import diffusion, flow
from reelworks.models.objectives.samplers.flow import Edit
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.training.encoding import conditioning
from reelworks.training.encoding.encoders import FrozenEncoders
from reelworks.training.recipe import validation
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.step import draws


@dataclass(frozen=True)
class GenerateOptions:
    """Settings of a generation, without the prompt."""

    JSON_KEYS: ClassVar = ("num_inference_steps", "guidance_scale", "fps", "seed")

    shape: Shape  # frames, height and width in pixels
    fps: float  # frames per second of a video, which some models take as an input
    num_inference_steps: int  # steps of the sampler
    guidance_scale: float  # scale of classifier-free or embedded guidance; 1 means none
    seed: int  # seed of the noise, the same for each prompt
    conditions: Conditions = field(default_factory=Conditions)  # condition frames and joined clips
    # `[T, H, W, 3]` uint8 frames of a control or of sources by name, at the size of `shape`.
    companions: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    # "pipeline" for the family's in diffusers, "own" for ours; None uses the pipeline if possible.
    sampler: Literal["own", "pipeline"] | None = None
    guided_channels: int | None = None  # latent channels to which iddpm applies guidance, the first; None guides all
    # Guidance by condition frames, for networks that get them beside the noise; None or 1 means none.
    image_guidance_scale: float | None = None

    @classmethod
    def of_previews(cls, data: RecipeData) -> GenerateOptions | None:
        """Return the settings of the recipe's previews, with all their files read; None if it has no prompts."""
        recipe, c = data.recipe, data.recipe.samples
        if not c.prompts:
            return None
        num_frames, height, width = c.num_frames, c.height, c.width
        if not (num_frames and height and width):  # take what is missing from the bucket that is trained most
            most = defaults.shape_of(data, picture=num_frames == 1)
            num_frames, height, width = num_frames or most.num_frames, height or most.height, width or most.width
        shape = Shape(num_frames, height, width)
        validation.require_given_frames(recipe.model, c.reference, c.last_frame, shape.num_frames)
        sampled, fps = defaults.sampled(recipe), defaults.fps_of(data)
        config = conditions.as_read(recipe, fps)
        reference, last = (
            None if file is None else conditions.read(Path(file), shape, 1, config, f"samples.{key}")
            for key, file in (("reference", c.reference), ("last_frame", c.last_frame))
        )
        kept = None if c.inpaint is None else conditions.companion(Path(c.inpaint), shape, "samples.inpaint", config)
        return cls(
            shape,
            fps,
            sampled.num_inference_steps,
            sampled.guidance_scale,
            recipe.seed,
            Conditions(reference, last_frame=last, inpaint=kept),
            conditions.companions(c.companions, shape, "samples.", recipe, fps),
            guided_channels=sampled.guided_channels,
            image_guidance_scale=sampled.image_guidance_scale,
        )

    def __post_init__(self) -> None:
        if not 0 < self.fps <= defaults.MAX_FPS:
            raise UserError(
                f"not in (0, {defaults.MAX_FPS}]",
                code="fps-out-of-range",
                field="--fps",
                value=self.fps,
                remedy="use the frame rate of the footage, such as 24",
            )
        if not math.isfinite(self.guidance_scale):
            raise UserError(
                "not a finite number",
                code="guidance-scale-invalid",
                field="--guidance-scale",
                value=self.guidance_scale,
                remedy="use a number from 1 (no guidance) to about 10",
            )

    def to_text(self) -> str:
        """Return steps and guidance scale as readable text."""
        return f"{units.plural(self.num_inference_steps, 'step')}, guidance scale {self.guidance_scale:g}"


@torch.no_grad()
def generate(
    boundary: DtypeBoundary[DenoiserInputs],
    encoder: FrozenEncoders,
    objective: ObjectiveConfig,
    prompts: Iterable[str],
    options: GenerateOptions,
) -> list[tuple[NDArray[np.uint8], Sound | None]]:
    """Generate a clip `[T, H, W, 3]` uint8 for each prompt, independent of the others, and its sound if the model has sound.

    Joined clips have more frames than the shape.
    """
    geometry = encoder.autoencoder.geometry
    geometry.require(options.shape, ("--num-frames", "--height", "--width"))
    options.conditions.check(geometry, options.shape, encoder.conditioning)
    encoder = dataclasses.replace(encoder, given=tuple(options.companions))
    with enough_memory(options.shape):
        made = []
        for prompt in prompts:
            one = _Generation(boundary, encoder, objective, prompt, options)
            frames = conditions.join(one.make, options.conditions)
            made.append((frames, _joined(one.sounds, options) if one.sounds else None))
        return made


@contextmanager
def enough_memory(shape: Shape) -> Iterator[None]:
    """Turn failed allocations into a `UserError` that names the shape."""
    try:
        yield
    except (MemoryError, RuntimeError, TypeError) as error:
        # torch has a class for device memory only; failures of host memory, and sizes beyond 64 bits, are
        # recognised by their messages.
        out_of_memory = any(word in str(error).lower() for word in ("alloc", "overflow"))
        if not (out_of_memory or isinstance(error, torch.OutOfMemoryError | MemoryError)):
            raise
        reason = str(error).partition("\n")[0][:200]
        raise UserError(
            f"this shape does not fit into memory ({reason or 'no host memory is left'})",
            code="out-of-memory",
            field="--num-frames, --height, --width",
            value=str(shape),
            remedy="lower one of them",
        ) from error


def generator_of(options: GenerateOptions, device: torch.device) -> torch.Generator:
    """Return the generator of all random numbers of a prompt, as scripts give it to pipelines of diffusers."""
    return torch.Generator(machine.exact_device(device)).manual_seed(options.seed)


class _Generation:
    """The clip of one prompt, which `make` makes, or each of the clips that are joined to it.

    Networks are called with two rows, one with the prompt and one without.

    Attributes:
        sounds: The sound of each clip so far, if the model is one with sound.
    """

    def __init__(
        self,
        boundary: DtypeBoundary[DenoiserInputs],
        encoder: FrozenEncoders,
        objective: ObjectiveConfig,
        prompt: str,
        options: GenerateOptions,
    ) -> None:
        self._boundary, self._encoder, self._objective = boundary, encoder, objective
        self._device = device = encoder.device
        self._generator = generator_of(options, device)
        # Sources that are frames are generated with the clip, and cut off.
        as_frames = encoder.conditioning.companions.sources_as_frames
        self._sources = sum(name in options.companions for name in SOURCES) if as_frames else 0
        self._of_clip = encoder.autoencoder.geometry.latent(options.shape)
        self._companions = {name: torch.from_numpy(np.array(f))[None] for name, f in options.companions.items()}
        self._prompt = prompt
        self._without_text = torch.tensor([False, True], device=device)
        embeds_guidance = encoder.conditioning.guidance == "embedded"
        self._guidance = torch.full((2,), options.guidance_scale if embeds_guidance else 1.0, device=device)
        self._options = dataclasses.replace(options, guidance_scale=1.0) if embeds_guidance else options
        self._conditioning: dict[str, Tensor] = {}
        self._given_1N: Tensor | None = None  # True for condition frames that the network gets beside the noise
        self.sounds: list[Sound] = []

    def make(self, reference: Frames | None) -> Frames:
        """Generate a clip that begins with the frames of a reference, if there is one."""
        encoder, options, companions = self._encoder, self._options, self._companions
        shape, last = options.shape, options.conditions.last_frame
        start, edit = self._noise(), None
        blank = np.zeros((1, shape.height, shape.width, 3), np.uint8)
        ends = [blank if each is None else each[:1] for each in (reference, last)]
        frames = torch.from_numpy(np.stack(ends, axis=1))
        if encoder.conditioning.companions.control_parts:
            clip, mask = conditions.kept(options.conditions, reference, options.companions.get("mask"), shape)
            frames, companions = torch.from_numpy(clip)[None], companions | {"mask": torch.from_numpy(mask)[None]}
        seen = conditioning.seen_by_texts(encoder, companions, frames, shape.num_frames)
        pictures = [each.expand(2, *each.shape[1:]) for each in seen]
        self._text = encoder.texts([self._prompt] * 2, [False, True], pictures)
        encoded = conditioning.encode_conditioning(encoder, start, companions, frames, shape.num_frames)
        self._conditioning |= conditioning.with_noise(encoder, encoded, lambda _name, each: self._draw(each.shape))
        if encoder.conditioning.frames and not (reference is None and last is None):
            begun, ratio = conditions.give(encoder, start, reference, last, shape.num_frames)
            if encoder.conditioning.frames_beside_noise:
                self._given_1N, self._conditioning["condition"] = ratio == 0, begun
            else:
                start, edit = begun, Edit(ratio, lambda step: self._noise())
        latent = self._sampled(start, edit)[:, :, self._sources :]
        return encoder.frames(latent, shape.num_frames)[0].cpu().numpy()

    def _sampled(self, start: Tensor, edit: Edit | None) -> Tensor:
        """Sample the latents of a clip, and its sound unless that is given."""
        sound, options = self._encoder.sound, self._options
        if sound is None:
            return self._sampled_alone(self._network, start, edit, self._encoder.conditioning.guided_length)
        if (heard_SK := options.conditions.sound) is not None:
            self.sounds.append(Sound(heard_SK, sound.spec.sample_rate))
            network = self._hearing(sound.latents(torch.from_numpy(heard_SK)[None], self._device))
            return self._sampled_alone(network, start, edit)
        assert self._objective.name == "rectified-flow", "the recipe was checked"
        track = sound.at_rate(options.fps)
        noise = self._draw((1, *track.latent_shape(options.shape.num_frames)))
        latent, heard = flow.sample_with_sound(
            self._both,
            start,
            noise,
            num_steps=options.num_inference_steps,
            guidance_scale=options.guidance_scale,
            shift=draws.shift_ratio(self._objective, options.shape, self._of_clip),
            sound_shift=track.config.timestep_shift,
            edit=edit,
        )
        samples, rate = track.samples(heard)
        self.sounds.append(Sound(samples[0].numpy(), rate))
        return latent

    def _sampled_alone(
        self, network: flow.Network, start: Tensor, edit: Edit | None, guided_length: str = "free"
    ) -> Tensor:
        """Sample the latents of a clip."""
        objective, options = self._objective, self._options
        steps, scale = options.num_inference_steps, options.guidance_scale
        if objective.name == "iddpm":
            return diffusion.sample_iddpm(
                network,
                start,
                num_steps=steps,
                guidance_scale=scale,
                step_noise=lambda step: self._noise(),
                guided_channels=options.guided_channels,
                edit=edit,
            )
        if objective.name in PREDICTIONS:
            assert edit is None, "families of this objective make pictures alone"
            return diffusion.sample_ddim(
                network,
                start,
                PREDICTIONS[objective.name],
                num_steps=steps,
                guidance_scale=scale,
                zero_snr=objective.zero_terminal_snr,
            )

        def velocity(z_2B: Tensor, t_2B: Tensor, frame_mask_2B: Tensor | None) -> Tensor:
            output = network(z_2B, t_2B, frame_mask_2B)
            made = rectified_flow.velocity_from(output, z_2B, t_2B.float(), objective.prediction)
            if guided_length == "free":
                return made
            return flow.guided_at_length(made, scale, guided_length)

        shift = draws.shift_ratio(objective, options.shape, self._of_clip)
        return flow.sample_flow(velocity, start, num_steps=steps, guidance_scale=scale, shift=shift, edit=edit)

    def _noise(self) -> Tensor:
        size = 1, self._encoder.autoencoder.latent_channels, self._sources + self._of_clip[0], *self._of_clip[1:]
        return self._draw(size)

    def _draw(self, size: Sequence[int]) -> Tensor:
        return torch.randn(tuple(size), generator=self._generator, device=self._generator.device).to(self._device)

    def _network(self, z_2B: Tensor, t_2B: Tensor, frame_mask_2B: Tensor | None) -> Tensor:
        """Predict a picture."""
        if self._given_1N is None:
            return self._boundary(self._inputs(z_2B, t_2B, frame_mask_2B))
        output = self._boundary(self._inputs(z_2B, t_2B, ~self._given_1N.expand(2, -1)))
        if (scale := self._options.image_guidance_scale or 1.0) == 1.0:
            return output
        without_both = self._boundary(self._inputs(z_2B[1:], t_2B[1:], None, first=1))
        return flow.guided_by_frames(output, without_both, scale)

    def _both(
        self, z_2B: Tensor, sound_2B: Tensor, t_2B: Tensor, sound_t_2B: Tensor, mask_2B: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Predict the velocities of a picture and of its sound."""
        every = torch.ones(len(sound_2B), sound_2B.shape[2], dtype=torch.bool, device=self._device)
        heard = SoundInputs(sound_2B, sound_t_2B.float(), every)
        out, of_sound = self._boundary.both(self._inputs(z_2B, t_2B, mask_2B, sound=heard))
        kind = self._objective.prediction
        picture = rectified_flow.velocity_from(out, z_2B, t_2B.float(), kind)
        return picture, rectified_flow.velocity_from(of_sound, sound_2B, sound_t_2B.float(), kind)

    def _hearing(self, heard: Tensor) -> flow.Network:
        """Return the network for a picture of which the sound is given: clean, at timestep 0."""

        def picture(z_2B: Tensor, t_2B: Tensor, mask_2B: Tensor | None) -> Tensor:
            time = torch.zeros(len(z_2B), device=self._device)
            mask = torch.zeros(len(z_2B), heard.shape[2], dtype=torch.bool, device=self._device)
            sound = SoundInputs(heard.expand(len(z_2B), -1, -1, -1, -1), time, mask)
            return self._boundary.both(self._inputs(z_2B, t_2B, mask_2B, sound=sound))[0]

        return picture

    def _inputs(
        self, z_B: Tensor, t_B: Tensor, mask_BN: Tensor | None, first: int = 0, sound: SoundInputs | None = None
    ) -> DenoiserInputs:
        n, options, device = len(z_B), self._options, self._device
        every = torch.ones(n, z_B.shape[2], dtype=torch.bool, device=device)
        return DenoiserInputs(
            latent=z_B,
            time=t_B.float(),
            text=self._text.tokens[first:],
            text_mask=self._text.mask[first:],
            pooled=self._text.pooled[first:],
            guidance=self._guidance[first:],
            frame_mask=every if mask_BN is None else mask_BN,
            # A picture has the rate of pictures in training.
            fps=torch.full((n,), decode.IMAGE_FPS if options.shape.num_frames == 1 else options.fps, device=device),
            height=torch.full((n,), float(options.shape.height), device=device),
            width=torch.full((n,), float(options.shape.width), device=device),
            drop_text=self._without_text[first:],
            **given(self._conditioning, n),
            sound=sound,
        )


def _joined(sounds: list[Sound], options: GenerateOptions) -> Sound:
    """Concatenate the sounds of joined clips without the time of the frames that they share."""
    rate, shared = sounds[0].rate, options.conditions.condition_frames / options.fps
    parts = [sounds[0].samples, *(sound.samples[round(shared * rate) :] for sound in sounds[1:])]
    return Sound(np.concatenate(parts), rate)
