"""Call a HunyuanVideo 1.5 network and its pipeline."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode

from reelworks.models.api import DenoiserInputs, TextEmbedding
from reelworks.models.diffusers_denoiser import (
    DiffusersNetwork,
    EncodedText,
    embedded,
    of_both,
    rounds_latents,
    with_plain_guider,
)
from reelworks.models.families.hunyuan_video15.spec import HunyuanVideo15Config
from reelworks.models.host_waits import until_called

_IMAGE_TOKENS = 1  # for a missing picture; masked


def predict(module: Any, inputs: DenoiserInputs, config: HunyuanVideo15Config) -> Tensor:
    """Return the velocity `[B, C, T, H, W]`; the network's own points towards the noise.

    The input for text to be rendered in the clip is masked zeros. So is that for a first frame, if there
    is none or the clip is a picture.
    """
    latent = inputs.latent
    B = len(latent)
    first, mask = torch.zeros_like(latent), torch.zeros_like(latent[:, :1])
    image = latent.new_zeros(B, _IMAGE_TOKENS, config.image_embed_dim)
    shows = config.first_frame and latent.shape[2] > 1
    if shows:
        assert inputs.first_frame is not None
        assert inputs.image is not None
        first, image = inputs.first_frame, inputs.image
        mask[:, :, 0] = 1
    clip_time, text_time = module.time_embed.time_proj, module.context_embedder.time_text_embed.time_proj
    kept_BM = pad(pad(inputs.text_mask, (1, 0)), (image.shape[1], 0), value=shows)
    in_order = until_called(module.transformer_blocks[0], _Sorted(shows, kept_BM, image.shape[1]))
    with embedded(clip_time, inputs.time), embedded(text_time, inputs.time), in_order:
        out: Tensor = module(
            torch.cat([latent, first, mask], dim=1),
            inputs.time.to(latent.dtype),
            inputs.text,
            inputs.text_mask,
            encoder_hidden_states_2=latent.new_zeros(B, 1, config.text_embed_2_dim),
            encoder_attention_mask_2=inputs.text_mask.new_zeros(B, 1),
            image_embeds=image,
            return_dict=False,
        )[0]
    return -out


class _Sorted(TorchFunctionMode):
    """Let the network put kept tokens before masked ones without waiting for the numbers of both.

    It concatenates what masks select of the picture and the texts of a clip, then what they do not. Here they select all,
    and the rows are sorted once they are stacked. Legend: B clips, M tokens of pictures, rendered texts and texts.
    """

    def __init__(self, shows: bool, kept_BM: Tensor, pictures: int) -> None:
        super().__init__()
        self._shows, self._sorts = shows, False
        self._rows_B1 = torch.arange(len(kept_BM), device=kept_BM.device)[:, None]
        self._order_BM = (~kept_BM).argsort(dim=1, stable=True)
        # Of the masked tokens, those of texts become zeros.
        self._has_value_BM = kept_BM[self._rows_B1, self._order_BM] | (self._order_BM < pictures)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace what depends on values."""
        if func is torch.all:  # whether there is no picture, which it asks before it concatenates
            self._sorts = True
            return not self._shows
        if func is Tensor.__getitem__ and isinstance(mask := args[1], Tensor) and mask.dtype == torch.bool:
            return args[0][:0] if getattr(mask, "is_inverted", False) else args[0]
        result = func(*args, **(kwargs or {}))
        if func is Tensor.__invert__:
            result.is_inverted = True
        if func is torch.stack and self._sorts:
            result = result[self._rows_B1, self._order_BM]
            if result.dtype != torch.bool:
                result = torch.where(self._has_value_BM[..., None], result, result.new_zeros(()))
        return result


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions, without the letters of their quoted words."""
    pipeline.tokenizer_max_length = length  # this pipeline takes the length nowhere else
    none = torch.zeros(len(captions), 1, 1)
    letters = {"prompt_embeds_2": none, "prompt_embeds_mask_2": none[..., 0]}
    tokens, mask, *_ = pipeline.encode_prompt(captions, batch_size=len(captions), **letters)
    return EncodedText(tokens, mask)


def pipeline_arguments(text: TextEmbedding, guidance_scale: float, config: HunyuanVideo15Config) -> dict[str, Any]:
    """Return the arguments of a pipeline call, without text to be rendered in the picture, as in training."""
    none = {
        "prompt_embeds_2": text.tokens.new_zeros(1, 1, config.text_embed_2_dim),
        "prompt_embeds_mask_2": text.mask.new_zeros(1, 1),
    }
    return of_both(text, lambda one: {"prompt_embeds": one.tokens, "prompt_embeds_mask": one.mask} | none)


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"hunyuan-video-1.5": encode_text},
    pipeline_arguments=pipeline_arguments,
    pipeline_settings=with_plain_guider,
    pipeline_note="its pipeline also reads the letters of quoted words, which training does not: pictures differ from the previews",
    no_pipeline=rounds_latents,
)
