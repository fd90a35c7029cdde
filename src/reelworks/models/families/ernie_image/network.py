"""Call an ERNIE-Image network and its pipeline."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn

from reelworks.models.api import DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, rounds_latents, unpadded_arguments
from reelworks.models.families.ernie_image.spec import ErnieImageConfig


def predict(module: Any, inputs: DenoiserInputs, config: ErnieImageConfig) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`; the network's own points towards the noise.

    A picture's position is behind its text, whose padding is not attended to.
    """
    out: Tensor = module(
        inputs.latent[:, :, 0],
        timestep=inputs.time,
        text_bth=inputs.text,
        text_lens=inputs.text_mask.sum(dim=1),
        return_dict=False,
    )[0]
    return -out[:, :, None]


@final
class TokenAngles(nn.Module):
    """Angles of tokens at positions `[B, N, 3]`, `[B, N, 1, head width]`, in place of the module of diffusers.

    That one turns autocast off around its products, which the meta device does not have; autocast leaves these as they are.
    """

    def __init__(self, theta: float, widths: tuple[int, ...]) -> None:
        super().__init__()
        self._theta, self._widths = theta, widths

    def forward(self, positions: Tensor) -> Tensor:
        """Return the angles, each twice in a row."""
        axes = []
        for position, width in zip(positions.unbind(dim=2), self._widths, strict=True):
            scale = torch.arange(0, width, 2, dtype=torch.float32, device=positions.device) / width
            axes.append(position[..., None] * (1 / self._theta**scale))
        return torch.cat(axes, dim=2).repeat_interleave(2, dim=2)[:, :, None]


def prepare(module: Any) -> None:
    """Let a network run on the meta device."""
    module.pos_embed = TokenAngles(module.pos_embed.theta, tuple(module.pos_embed.axes_dim))


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions, each at its own length, and pad them to the longest."""
    return EncodedText.from_rows(pipeline.encode_prompt(captions, pipeline.device))


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"ernie-image": encode_text},
    pipeline_arguments=unpadded_arguments,
    word_arguments=lambda _config, _length: {"use_pe": False},  # a language model that rewrites prompts
    no_pipeline=rounds_latents,
    prepare=prepare,
)
