"""From a decoded micro-batch to what the model sees: latents, times, noise, masks, captions.

Every draw is a function of (seed, epoch, uid, copy, purpose), so that neither rank nor batch nor order
changes what a clip meets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reelworks.core import hash_rng
from reelworks.core.hash_rng import U64, Purpose
from reelworks.data.loader import MicroBatch, MicroBatchRequest
from reelworks.diffusion import frame_masks, objectives, timesteps
from reelworks.diffusion.config import ObjectiveConfig
from reelworks.diffusion.rectified_flow import generated_only, mean_over_generated
from reelworks.encoders import conditioning
from reelworks.encoders.encoders import LiveEncoder
from reelworks.models.api import DenoiserInputs


@dataclass(frozen=True)
class Choices:
    """Draws of one micro-batch, on the CPU.

    Attributes:
        unshifted_time: `[B]` timesteps as their density gives them, in [0, 1000].
        time: `[B]` timesteps that are trained.
        frame_mask: `[B, N]` True where a latent frame is generated, False where it is given.
        drop_text: `[B]` True where the clip is shown with the empty caption.
    """

    unshifted_time: Tensor
    time: Tensor
    frame_mask: NDArray[np.bool_]
    drop_text: NDArray[np.bool_]


def draw_seeds(work: MicroBatchRequest, purpose: Purpose, *, seed: int) -> U64:
    """One word for each clip, from which all its draws for a purpose follow."""
    return hash_rng.hash64(seed, work.epoch, work.uids, work.draw_copies, purpose)


def draw(work: MicroBatchRequest, config: ObjectiveConfig, *, seed: int, latent_frames: int) -> Choices:
    """Draw for the clips of a micro-batch.

    Args:
        work: The micro-batch; neither its rank nor its order changes a draw.
        config: What is drawn, and how often.
        seed: The recipe's.
        latent_frames: Frames of the latents.
    """
    uniform_B = torch.from_numpy(hash_rng.uniform(draw_seeds(work, Purpose.TIMESTEP, seed=seed)))
    ratio = timesteps.shift_ratio(
        config,
        height=work.shape.height,
        width=work.shape.width,
        num_frames=work.shape.num_frames,
        latent_frames=latent_frames,
    )
    unshifted_B, time_B = objectives.from_config(config).times(uniform_B, ratio)
    return Choices(
        unshifted_B,
        time_B,
        frame_masks.draw_frame_mask(config.mask_ratios, latent_frames, draw_seeds(work, Purpose.MASK, seed=seed)),
        hash_rng.passes(draw_seeds(work, Purpose.TEXT_DROPOUT, seed=seed), config.caption_dropout),
    )


@dataclass(frozen=True)
class Example:
    """One micro-batch ready for the model.

    Attributes:
        inputs: What the model takes.
        x0: `[B, C, T, H, W]` clean latents.
        noise: `[B, C, T, H, W]`.
        generated_share: `[B]` share of frames that are generated, not given.
        counts: `[B]` True where the clip counts in the loss.
        loss_weight: `[B, T, H, W]` of every latent element in its clip's loss; None where all count alike.
    """

    inputs: DenoiserInputs
    x0: Tensor
    noise: Tensor
    generated_share: Tensor
    counts: Tensor
    loss_weight: Tensor | None = None

    def losses(self, output_BCTHW: Tensor, config: ObjectiveConfig) -> Tensor:
        """Loss of every clip, `[B]`, from the model's output."""
        i = self.inputs
        return objectives.from_config(config).losses(
            output_BCTHW, i.latent, self.x0, self.noise, i.time, i.frame_mask, self.loss_weight
        )

    def kept(self, output_BCTHW: Tensor, base_BCTHW: Tensor) -> Tensor:
        """How far every clip's output is from that of the base, `[B]`."""
        mask, weight = self.inputs.frame_mask, self.loss_weight
        apart = generated_only(output_BCTHW.float() - base_BCTHW.float(), mask, weight)
        return mean_over_generated(apart.square(), mask, weight)


def normal(shape: tuple[int, ...], words: U64, device: torch.device) -> Tensor:
    """Standard normal noise for each clip, from its own word.

    Drawn clip by clip: the head of a longer draw is not the shorter draw of the same seed. Equal on the
    same kind of device and torch version.
    """
    clips = []
    for word in words.tolist():
        generator = torch.Generator(device).manual_seed(int(word) & 0x7FFFFFFFFFFFFFFF)
        clips.append(torch.randn(shape, generator=generator, device=device))
    return torch.stack(clips)


def training_example(batch: MicroBatch, encoder: LiveEncoder, config: ObjectiveConfig, *, seed: int) -> Example:
    """Draw times, noise, masks and caption dropout, and noise the latents."""
    latent = encoder.latents(batch.frames)
    drawn = draw(batch.work, config, seed=seed, latent_frames=latent.shape[2])
    noise_words = draw_seeds(batch.work, Purpose.NOISE, seed=seed)
    return _example(
        batch,
        encoder,
        config,
        latent,
        drawn.time.to(encoder.device),
        normal(tuple(latent.shape[1:]), noise_words, encoder.device),
        frame_mask=torch.from_numpy(drawn.frame_mask).to(encoder.device),
        drop_text=drawn.drop_text,
    )


def validation_example(
    batch: MicroBatch, encoder: LiveEncoder, config: ObjectiveConfig, *, seed: int, times: list[float]
) -> Example:
    """One held-out clip at fixed times with fixed noise: the same at every validation and in every run.

    The clip stands in the batch once for each time.
    """
    work = batch.work
    latent = encoder.latents(batch.frames)
    index = torch.arange(len(times)).numpy()
    noise = normal(
        tuple(latent.shape[1:]),
        hash_rng.hash64(seed, "validation", work.uids, index, Purpose.NOISE),
        encoder.device,
    )
    repeated = latent.expand(len(times), -1, -1, -1, -1)
    return _example(
        batch,
        encoder,
        config,
        repeated,
        torch.tensor(times, dtype=torch.float32, device=encoder.device),
        noise,
        frame_mask=torch.ones(len(times), latent.shape[2], dtype=torch.bool, device=encoder.device),
        drop_text=np.zeros(len(times), dtype=np.bool_),
    )


def _example(
    batch: MicroBatch,
    encoder: LiveEncoder,
    config: ObjectiveConfig,
    x0: Tensor,
    time: Tensor,
    noise: Tensor,
    *,
    frame_mask: Tensor,
    drop_text: NDArray[np.bool_],
) -> Example:
    work, n = batch.work, len(time)
    companions, first = batch.companions, batch.frames[:, 0]
    seen = companions["source"][:, 0] if "source" in encoder.given else None
    text = encoder.texts(work.captions, drop_text[: len(work.captions)].tolist(), seen)
    beside = conditioning.encode_conditioning(encoder, x0[: len(first)], companions, first, work.shape.num_frames)
    fps = torch.tensor(work.fps, dtype=torch.float32, device=encoder.device)
    inputs = DenoiserInputs(
        latent=objectives.from_config(config).noised(x0, noise, time, frame_mask),
        time=time,
        text=text.tokens.expand(n, -1, -1),
        text_mask=text.mask.expand(n, -1),
        pooled=text.pooled.expand(n, -1),
        guidance=torch.ones(n, device=encoder.device),
        frame_mask=frame_mask,
        fps=fps.expand(n),
        height=torch.full((n,), float(work.shape.height), device=encoder.device),
        width=torch.full((n,), float(work.shape.width), device=encoder.device),
        drop_text=torch.from_numpy(drop_text).to(encoder.device),
        **{name: value.expand(n, *value.shape[1:]) for name, value in beside.items()},
    )
    counts = batch.is_valid.to(encoder.device).expand(n)
    weight = None
    if "loss_mask" in companions:
        mask = companions["loss_mask"].to(encoder.device)
        weight = conditioning.weights(mask, encoder.autoencoder.geometry).expand(n, -1, -1, -1)
        # The mask may lie where the clip is given: then it has no loss, and no weight in the step.
        counts = counts & (weight.amax(dim=(2, 3)) * frame_mask).any(dim=1)
    return Example(inputs, x0, noise, frame_mask.float().mean(dim=1), counts, weight)
