"""Call an Ideogram 4 network, and encode texts as its pipeline does.

The words of a text and the elements of a picture are one sequence. The release guides with a second network, which sees
pictures alone.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import pad

from reelworks.models.api import PURE_NOISE, DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, grid, lower_input
from reelworks.models.families.ideogram4.spec import Ideogram4Config

_FIRST_PLACE = 65536  # row and column of a picture's first element, and its number among words


def predict(module: Any, inputs: DenoiserInputs, config: Ideogram4Config) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`; the network's own points towards the data, and its time 1 is clean.

    Texts are cut to the longest of the micro-batch; without any, the picture is the whole sequence.
    """
    text = inputs.text
    mask_BL: Tensor | None = inputs.text_mask
    if not inputs.text_mask.is_meta:  # nobody knows there how long they are
        counts = inputs.text_mask.sum(dim=1).tolist()
        text = text[:, : max(counts)]
        mask_BL = None if min(counts) == max(counts) else inputs.text_mask[:, : max(counts)]
    places = grid(*inputs.latent.shape[3:], device=inputs.latent.device)
    # The network's own hooks, as those of sharded weights, are around what runs in place of its function.
    module.forward = partial(_forward, module)
    try:
        out: Tensor = module(
            inputs.latent.flatten(2).transpose(1, 2), text, mask_BL, 1 - inputs.time / PURE_NOISE, places, config
        )
    finally:
        del module.forward
    return out.transpose(1, 2).reshape(inputs.latent.shape)


def _forward(
    module: Any,
    tokens_BNC: Tensor,
    text_BLD: Tensor,
    mask_BL: Tensor | None,
    time_B: Tensor,
    places_N2: Tensor,
    config: Ideogram4Config,
) -> Tensor:
    """Return the output for the picture, as diffusers' function does, which rounds rotations to the dtype of tokens.

    It also projects texts at all places of the sequence, those of the picture too, which take most of its memory.
    """
    L, N = text_BLD.shape[1], tokens_BNC.shape[1]
    is_picture = (torch.arange(L + N, device=tokens_BNC.device) >= L).long()
    words = module.llm_cond_proj(module.llm_cond_norm(text_BLD))
    hidden = torch.cat([words, module.input_proj(tokens_BNC)], dim=1) + module.embed_image_indicator(is_picture)
    modulation = functional.silu(module.adaln_proj(module.t_embedding(time_B)[:, None]))
    rotations = _rotations(module.rotary_emb, L, places_N2, config)
    mask = None if mask_BL is None else pad(mask_BL, (0, N), value=True)[:, None, None]
    for block in module.layers:
        if torch.is_grad_enabled() and module.gradient_checkpointing:
            hidden = module._gradient_checkpointing_func(block, hidden, mask, rotations, modulation)
        else:
            hidden = block(hidden, mask, rotations, modulation)
    out: Tensor = module.final_layer(hidden[:, L:], conditioning=modulation)
    return out


def _rotations(rotary: Any, length: int, places_N2: Tensor, config: Ideogram4Config) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of all tokens, `[1, L + N, head_dim]` in float32.

    Frequencies turn by number, row and column of a token alternately, the last ones by its number alone. They are
    multiplied one by one, as a matrix product may round positions of 65536 and more to one value.
    """
    words = torch.arange(length, device=places_N2.device, dtype=torch.float32)[:, None].expand(-1, 3)
    positions = torch.cat([words, pad(places_N2, (1, 0)) + _FIRST_PLACE])
    frequencies = rotary.inv_freq.float()
    index = torch.arange(len(frequencies), device=places_N2.device)
    angles = positions[:, :1] * frequencies
    for axis in (1, 2):
        is_turned = (index % 3 == axis) & (index < 3 * config.mrope_section[axis])
        angles = torch.where(is_turned, positions[:, axis : axis + 1] * frequencies, angles)
    angles = torch.cat([angles, angles], dim=1)[None]
    return angles.cos(), angles.sin()


@final
class PackedRotations:
    """The attention of diffusers, with queries and keys turned in float32."""

    _attention_backend = None
    _parallel_config = None

    def __call__(
        self, attn: Any, hidden_states: Tensor, attention_mask: Tensor | None, image_rotary_emb: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Return the output `[B, L + N, D]`."""
        attend: Any = importlib.import_module("diffusers.models.attention_dispatch").dispatch_attention_fn
        layers = (attn.to_q, attn.to_k, attn.to_v)
        query, key, value = (layer(hidden_states).unflatten(-1, (attn.num_heads, attn.head_dim)) for layer in layers)
        query, key = (_turned(each, *image_rotary_emb).to(value) for each in (attn.norm_q(query), attn.norm_k(key)))
        out: Tensor = attend(query, key, value, attn_mask=attention_mask, backend=self._attention_backend)
        result: Tensor = attn.to_out[0](out.flatten(2))
        return result


def _turned(heads_BLHD: Tensor, cos_1LD: Tensor, sin_1LD: Tensor) -> Tensor:
    first, second = heads_BLHD.float().chunk(2, dim=-1)
    return heads_BLHD * cos_1LD[:, :, None] + torch.cat([-second, first], dim=-1) * sin_1LD[:, :, None]


def prepare(module: Any) -> None:
    """Keep rotations exact, and let the embedding of a time be computed in the dtype of its weights, from exact sines."""
    for block in module.layers:
        block.attention.set_processor(PackedRotations())
    module.t_embedding.mlp_in.register_forward_pre_hook(lower_input)


def encode_text(pipeline: Any, captions: list[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions, each at its own length; those that the pipeline would refuse are cut."""
    rows = []
    for caption in captions:
        fitting = _fitting(pipeline.tokenizer, caption, length)
        count = _count(pipeline.tokenizer, fitting)
        rows.append(pipeline.encode_prompt(fitting, 0, 0, count, pipeline.text_encoder.device)[0][0])
    return EncodedText.from_rows(rows)


def _fitting(words: Any, caption: str, length: int) -> str:
    """Return a caption without the words at its end that leave no room for the pipeline's template."""
    while caption and (over := _count(words, caption) - length) > 0:
        tokens = words(caption, add_special_tokens=False, return_offsets_mapping=True)
        starts = [start for start, _ in tokens["offset_mapping"]]
        caption = caption[: starts[-min(over, len(starts))]]
    return caption


def _count(words: Any, caption: str) -> int:
    """Return the number of tokens of a caption in the pipeline's template."""
    messages = [{"role": "user", "content": [{"type": "text", "text": caption}]}]
    text = words.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return len(words(text, add_special_tokens=False)["input_ids"])


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"ideogram-4": encode_text},
    prepare=prepare,
    word_arguments=lambda _config, _length: None,
    no_pipeline=lambda *_: "the family's pipeline takes no embedded texts",
)
