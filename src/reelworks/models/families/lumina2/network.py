"""Call a Lumina Image 2.0 network and its pipeline."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from reelworks.models.api import PURE_NOISE, DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, embedded, grid, masked_arguments
from reelworks.models.families.lumina2.spec import Lumina2Config


def predict(module: Any, inputs: DenoiserInputs, config: Lumina2Config) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`; the network's own points towards the data, and its time 1 is clean."""
    time = 1 - inputs.time / PURE_NOISE
    with embedded(module.time_caption_embed.time_proj, time):
        out: Tensor = module(
            inputs.latent[:, :, 0], time, inputs.text, encoder_attention_mask=inputs.text_mask, return_dict=False
        )[0]
    return out[:, :, None]


@final
class PictureBehindWords(nn.Module):
    """Tokens of a picture and rotations of all tokens, in place of the module of diffusers.

    That one needs the lengths of texts as numbers, which the meta device does not have, and turns in float64.
    """

    def __init__(self, theta: float, widths: tuple[int, ...], patch_size: int) -> None:
        super().__init__()
        self._theta, self._widths, self._patch = theta, widths, patch_size

    def forward(
        self, latent_BCHW: Tensor, mask_BL: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, list[int], list[int]]:
        """Return tokens; rotations of texts, of the picture, and of both without padding; lengths of texts, and of both."""
        B, C, H, W = latent_BCHW.shape
        L, patch, device = mask_BL.shape[1], self._patch, latent_BCHW.device
        counts: list[int] = [L] * B if mask_BL.is_meta else mask_BL.sum(dim=1).tolist()
        words = pad(torch.arange(L, dtype=torch.float32, device=device)[:, None], (0, 2))
        places = grid(H // patch, W // patch, device=device)
        pictures = [pad(places, (1, 0), value=count) for count in counts]
        both = [torch.cat([words[:count], picture]) for count, picture in zip(counts, pictures, strict=True)]
        patches = latent_BCHW.reshape(B, C, H // patch, patch, W // patch, patch).permute(0, 2, 4, 3, 5, 1)
        return (
            patches.flatten(3).flatten(1, 2),
            self._rotations(words.expand(B, -1, -1)),
            self._rotations(torch.stack(pictures)),
            self._rotations(pad_sequence(both, batch_first=True)),
            counts,
            [count + len(places) for count in counts],
        )

    def _rotations(self, positions_BN3: Tensor) -> Tensor:
        """Return the rotations of tokens as complex numbers, `[B, N, head width / 2]`."""
        axes = []
        for position, width in zip(positions_BN3.unbind(dim=2), self._widths, strict=True):
            scale = torch.arange(0, width, 2, dtype=torch.float32, device=position.device) / width
            axes.append(position[..., None] / self._theta**scale)
        angles = torch.cat(axes, dim=2)
        return torch.polar(torch.ones_like(angles), angles)


def prepare(module: Any) -> None:
    """Let a network run on the meta device."""
    former = module.rope_embedder
    module.rope_embedder = PictureBehindWords(former.theta, tuple(former.axes_dim), former.patch_size)


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions behind the pipeline's instruction; an empty one stands alone, as what it guides away from does."""
    tokens, mask, empty, empty_mask = pipeline.encode_prompt(
        captions, do_classifier_free_guidance="" in captions, max_sequence_length=length
    )
    for row, caption in enumerate(captions):
        if not caption:
            tokens[row], mask[row] = empty[row], empty_mask[row]
    return EncodedText(tokens, mask)


NETWORK = DiffusersNetwork(
    predict, encode_text={"lumina2": encode_text}, pipeline_arguments=masked_arguments, prepare=prepare
)
