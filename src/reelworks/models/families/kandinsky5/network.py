"""Call a Kandinsky 5 network and its pipeline.

Legend: B clips, T latent frames, H height, W width, N tokens, K heads, D numbers of a head.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from reelworks.models.api import DenoiserInputs, TextEmbedding
from reelworks.models.diffusers_denoiser import (
    DiffusersNetwork,
    EncodedText,
    lower_input,
    of_both,
    rounds_latents,
    unpadded,
)
from reelworks.models.families.kandinsky5.spec import Kandinsky5Config

_PERIOD = 10_000.0
_PIXELS = 8  # of the side of a latent element


def predict(module: Any, inputs: DenoiserInputs, config: Kandinsky5Config) -> Tensor:
    """Return the velocity `[B, C, T, H, W]`; the network's own points towards the noise.

    Nothing is masked, so that a pass is for one clip and its text.
    """
    texts = unpadded(inputs.text, inputs.text_mask)
    return torch.cat([_of_clip(module, inputs, config, row, text) for row, text in enumerate(texts)])


def _of_clip(module: Any, inputs: DenoiserInputs, config: Kandinsky5Config, row: int, text: Tensor) -> Tensor:
    latent_BTHWC = inputs.latent[row : row + 1].permute(0, 2, 3, 4, 1)
    _, T, H, W, C = latent_BTHWC.shape
    places = partial(torch.arange, device=text.device)
    out: Tensor = module(
        # No frame is given.
        pad(latent_BTHWC, (0, C + 1)) if config.visual_cond else latent_BTHWC,
        text[None],
        inputs.time[row : row + 1],
        inputs.pooled[row : row + 1],
        [places(T), places(H // 2), places(W // 2)],
        places(len(text)),
        _scale(H, W) if config.visual_cond else (1.0, 1.0, 1.0),
        return_dict=False,
    )
    return -out.permute(0, 4, 1, 2, 3)


def _scale(height: int, width: int) -> tuple[float, float, float]:
    """Return what positions of clips are divided by, as the pipeline does."""
    is_small = all(480 <= _PIXELS * side <= 854 for side in (height, width))
    return (1.0, 2.0, 2.0) if is_small else (1.0, 3.16, 3.16)


def prepare(module: Any) -> None:
    """Keep angles and rotations in float32 on any device, in whatever dtype the network is stored.

    That of diffusers has tables, which are rounded with the weights, and rounds rotated queries and keys to bfloat16.
    """
    heads, axes = module.text_rope_embeddings.dim, module.visual_rope_embeddings.axes_dims
    del module.text_rope_embeddings, module.visual_rope_embeddings
    module.text_rope_embeddings = partial(_text_turns, heads)
    module.visual_rope_embeddings = partial(_visual_turns, axes)
    module.time_embeddings.register_forward_pre_hook(_renew)
    module.time_embeddings.in_layer.register_forward_pre_hook(lower_input)
    for part in module.modules():
        if hasattr(part, "set_processor"):
            part.set_processor(ExactRotations())


def _frequencies(count: int, device: torch.device) -> Tensor:
    return torch.exp(-math.log(_PERIOD) * torch.arange(count, dtype=torch.float32, device=device) / count)


def _renew(embedding: Any, args: tuple[Tensor]) -> None:
    embedding.freqs = _frequencies(embedding.model_dim // 2, args[0].device)


def _turns(angles: Tensor) -> Tensor:
    """Return cosines and sines of angles `[..., D/2]`, the same for all heads: `[..., 1, D/2, 2]`."""
    return torch.stack([angles.cos(), angles.sin()], dim=-1).unsqueeze(-3)


def _angles(positions: Tensor, width: int) -> Tensor:
    return torch.outer(positions, _frequencies(width // 2, positions.device))


def _text_turns(width: int, positions: Tensor) -> Tensor:
    return _turns(_angles(positions, width))


def _visual_turns(
    widths: Sequence[int], sizes: Sequence[int], positions: Sequence[Tensor], scale: Sequence[float]
) -> Tensor:
    """Return the turns of tokens `[1, T, H, W, 1, D/2, 2]`."""
    of_axes = [_angles(each, width) / by for each, width, by in zip(positions, widths, scale, strict=True)]
    T, H, W = sizes[1:]
    of_T, of_H, of_W = of_axes
    spread = (of_T[:, None, None].expand(T, H, W, -1), of_H[:, None].expand(T, H, W, -1), of_W.expand(T, H, W, -1))
    return _turns(torch.cat(spread, dim=-1)[None])


@final
class ExactRotations:
    """Attention of diffusers' network, but for the rounding of what is rotated."""

    _attention_backend = None
    _parallel_config = None

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        rotary_emb: Tensor | None = None,
        sparse_params: None = None,
    ) -> Tensor:
        """Return the results for hidden states `[B, N, K·D]`, which attend to others or to themselves."""
        shown = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query, key, value = (
            layer(given).unflatten(2, (attn.num_heads, -1))
            for layer, given in ((attn.to_query, hidden_states), (attn.to_key, shown), (attn.to_value, shown))
        )
        query, key = (
            _rotated(norm(each.to(norm.weight.dtype)), rotary_emb).type_as(each)
            for norm, each in ((attn.query_norm, query), (attn.key_norm, key))
        )
        attend: Any = importlib.import_module("diffusers.models.attention_dispatch").dispatch_attention_fn
        out: Tensor = attend(query, key, value, backend=self._attention_backend, parallel_config=self._parallel_config)
        result: Tensor = attn.out_layer(out.flatten(2))
        return result


def _rotated(values_BNKD: Tensor, turns: Tensor | None) -> Tensor:
    if turns is None:
        return values_BNKD
    cosine, sine = turns.unbind(dim=-1)
    even, odd = values_BNKD.reshape(*values_BNKD.shape[:3], -1, 2).unbind(dim=-1)
    return torch.stack([cosine * even - sine * odd, sine * even + cosine * odd], dim=-1).flatten(3)


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions, each at its own length, and pad them to the longest."""
    rows = [pipeline.encode_prompt(caption, max_sequence_length=length)[:2] for caption in captions]
    tokens, pooled = zip(*rows, strict=True)
    return EncodedText.from_rows([each[0] for each in tokens])._replace(pooled=torch.cat(pooled))


def pipeline_arguments(text: TextEmbedding, guidance_scale: float, config: Kandinsky5Config) -> dict[str, Any]:
    """Return the arguments of a pipeline call, which takes texts without padding."""
    both = of_both(
        text,
        lambda one: {
            "prompt_embeds_qwen": one.tokens[one.mask][None],
            "prompt_embeds_clip": one.pooled,
            "prompt_cu_seqlens": pad(one.mask.sum()[None], (1, 0)),
        },
    )
    return both | {"guidance_scale": guidance_scale}


def _no_pipeline(module: nn.Module, config: Any) -> str | None:
    network: Any = module
    if not network.visual_cond:
        return "the family's pipeline draws pictures of seven sizes only"
    return rounds_latents(module, config)


NETWORK = DiffusersNetwork(
    predict,
    encode_text=dict.fromkeys(("kandinsky5", "kandinsky5-image"), encode_text),
    pipeline_arguments=pipeline_arguments,
    # The pipeline has negative words of its own, and draws pictures of seven sizes only.
    word_arguments=lambda config, _length: {"negative_prompt": ""} if config.visual_cond else None,
    no_pipeline=_no_pipeline,
    prepare=prepare,
)
