"""Call a FLUX.3 network, and encode texts as its modular pipeline does."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.hooks import RemovableHandle

from reelworks.models.api import PURE_NOISE, DenoiserInputs
from reelworks.models.diffusers_denoiser import DiffusersNetwork, EncodedText, embedded, grid, lower_input
from reelworks.models.families.flux3.spec import Flux3Config
from reelworks.models.text.modular_pipelines import TextParts, load_qwen3_vl

_SCALE = 0.5  # of rows and columns


def predict(module: Any, inputs: DenoiserInputs, config: Flux3Config) -> Tensor:
    """Return the velocity `[B, C, 1, H, W]`; the network's own points towards the noise.

    Positions have four axes: picture, row, column, and word or source, whose numbers are negative. Texts are as long as their windows.
    """
    *_, H, W = inputs.latent.shape
    text, mask_BL = _windows(inputs)
    device, L = inputs.latent.device, text.shape[1]
    positions = pad(grid(H, W, device=device) * _SCALE, (1, 1))
    tokens, count = inputs.latent.flatten(2).transpose(1, 2), len(positions)
    given: dict[str, Tensor] = {}
    if inputs.sources:
        given["image_cond_hidden_states"] = torch.cat([s.flatten(2).transpose(1, 2) for s in inputs.sources], dim=1)
        grids = [pad(grid(*s.shape[3:], device=device) * _SCALE, (1, 0)) for s in inputs.sources]
        own = [pad(places, (0, 1), value=-number) for number, places in enumerate(grids, start=1)]
        given["image_cond_ids"] = torch.cat(own)
        count += len(given["image_cond_ids"])
    exact = (inputs.time, torch.zeros_like(inputs.time))  # of the picture, and of all that is given
    with embedded(module.time_proj, *exact), _masked(module, _masks(module, mask_BL, count)):
        out: Tensor = module(
            tokens,
            encoder_hidden_states=text,
            timestep=inputs.time / PURE_NOISE,
            img_ids=positions,
            txt_ids=pad(grid(L, device=device), (3, 0)),
            return_dict=False,
            **given,
        )[0]
    return -out.transpose(1, 2).reshape(inputs.latent.shape)


def _windows(inputs: DenoiserInputs) -> tuple[Tensor, Tensor | None]:
    """Return texts cut to the longest window, and a mask if there are shorter ones, since networks know none."""
    if inputs.text_mask.is_meta:  # nobody knows there whether any is shorter
        return inputs.text, inputs.text_mask
    counts_2B = torch.stack([inputs.text_mask.sum(dim=1), inputs.text_mask.cumprod(dim=1).sum(dim=1)])
    lengths, unbroken = counts_2B.tolist()  # together, since the host waits for the device here
    longest = max(lengths)
    return inputs.text[:, :longest], inputs.text_mask[:, :longest] if min(unbroken) < longest else None


def _masks(module: Any, mask_BL: Tensor | None, others: int) -> Mapping[nn.Module, Tensor]:
    """Return the masks of keys of all blocks that see texts; `others` tokens follow them where all meet."""
    if mask_BL is None:
        return {}
    texts, all_ = (mask[:, None, None, :] for mask in (mask_BL, pad(mask_BL, (0, others), value=True)))
    return dict.fromkeys(module.txt_mode_blocks, texts) | dict.fromkeys(module.single_transformer_blocks, all_)


@contextmanager
def _masked(module: Any, masks: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Give attention these masks, also when blocks are recomputed; blocks of diffusers pass none on."""
    if not module.gradient_checkpointing or not torch.is_grad_enabled():
        with ExitStack() as stack:
            for block, mask in masks.items():
                stack.enter_context(_with_mask(block, mask))
            yield
        return
    run = module._gradient_checkpointing_func

    def run_masked(block: nn.Module, *args: Any) -> Any:
        return run(partial(_run_with_mask, block, masks[block]) if block in masks else block, *args)

    module._gradient_checkpointing_func = run_masked
    try:
        yield
    finally:
        module._gradient_checkpointing_func = run


def _run_with_mask(block: nn.Module, mask: Tensor, *args: Any) -> Any:
    with _with_mask(block, mask):
        return block(*args)


def _with_mask(block: Any, mask: Tensor) -> RemovableHandle:
    """Give the block's attention a mask, until the handle is left."""

    def add(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, kwargs | {"attention_mask": mask}

    handle: RemovableHandle = block.attn.register_forward_pre_hook(add, with_kwargs=True)
    return handle


def prepare(module: nn.Module) -> None:
    """Let norms of queries and keys compute in the dtype of their weights; diffusers gives them float32 in any case."""
    for name, norm in module.named_modules():
        if name.endswith((".norm_q", ".norm_k")):
            norm.register_forward_pre_hook(lower_input)


def encode_text(parts: TextParts, captions: Sequence[str], length: int, _pictures: list[Tensor]) -> EncodedText:
    """Embed captions with the pipeline's own step, each in a window of its own; a window's padding is attended to."""
    step: Any = importlib.import_module("diffusers.modular_pipelines.flux3.encoders").Flux3TextEncoderStep
    words = parts.tokenizer
    processor = SimpleNamespace(tokenizer=words, apply_chat_template=words.apply_chat_template)
    rows = [
        step._get_qwen3_vl_prompt_embeds(parts.text_encoder, processor, caption, max_sequence_length=length)[0]
        for caption in captions
    ]
    return EncodedText.from_rows(rows)


NETWORK = DiffusersNetwork(
    predict,
    encode_text={"flux3": encode_text},
    prepare=prepare,
    load_text_parts=load_qwen3_vl,
    no_pipeline=lambda *_: "the family has a modular pipeline only",
)
