"""Call a LongCat-Image network and its pipeline."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from reelworks.models.api import PURE_NOISE, DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, embedded, grid, pack, unpack
from reelworks.models.families.longcat_image.spec import LongCatImageConfig

_FIRST_ROW = 512  # and column of a picture: the number of tokens of its texts as they were trained


def predict(module: Any, inputs: DenoiserInputs, config: LongCatImageConfig) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`; the network's own points towards the noise.

    Padding tokens of texts are attended to. Words lie on the diagonal before the picture.
    """
    *_, H, W = inputs.latent.shape
    device = inputs.latent.device
    picture = pad(grid(H // 2, W // 2, device=device) + _FIRST_ROW, (1, 0), value=1)
    words = pad(grid(inputs.text.shape[1], device=device).expand(-1, 2), (1, 0))
    with embedded(module.time_embed.time_proj, inputs.time):
        out: Tensor = module(
            pack(inputs.latent[:, :, 0]),
            encoder_hidden_states=inputs.text,
            timestep=inputs.time / PURE_NOISE,
            img_ids=picture,
            txt_ids=words,
            return_dict=False,
        )[0]
    return -unpack(out, H, W)[:, :, None]


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions, quoted words letter by letter; padding tokens are attended to."""
    return EncodedText(pipeline.encode_prompt(captions)[0])


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"longcat-image": encode_text},
    word_arguments=lambda _config, _length: {"enable_prompt_rewrite": False},
    no_pipeline=lambda *_: "the family's pipeline takes no texts that are embedded already",
)
