"""Weights of STDiT3: how fresh ones are drawn, and how others are checked and loaded."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from reelworks.core.errors import UserError
from reelworks.models import weight_files
from reelworks.models.stdit3.embeddings import PatchProjection, RotaryEmbedding
from reelworks.models.stdit3.model import STDiT3

_EMPTY_CAPTION = "y_embedder.y_embedding"
_LAST_WEIGHT = "final_layer.linear.weight"
_SHOWN = 5  # keys that an error lists; the first tell what is wrong


@torch.no_grad()
def init(module: STDiT3) -> None:
    """Draw fresh weights from the global generator, by v1.2's rules.

    Temporal blocks add nothing at first, so that a fresh model treats frames as pictures.
    """
    for child in module.modules():
        if isinstance(child, nn.Linear):
            nn.init.xavier_uniform_(child.weight)
            nn.init.zeros_(child.bias)
        elif isinstance(child, PatchProjection):
            child.reset_parameters()
        elif isinstance(child, RotaryEmbedding):
            child.reset()
    width = module.config.hidden_size
    for name, parameter in module.named_parameters():
        if name.endswith("scale_shift_table"):
            nn.init.normal_(parameter, std=width**-0.5)
        elif name.endswith("_norm.weight"):
            nn.init.ones_(parameter)
        elif name == "fps_embedder.mlp.0.weight":
            nn.init.normal_(parameter, std=0.02)
        elif name == "fps_embedder.mlp.2.weight" or _opens_at_zero(name):
            nn.init.zeros_(parameter)
    nn.init.normal_(module.y_embedder.y_embedding, std=module.config.caption_channels**-0.5)


def _opens_at_zero(name: str) -> bool:
    return name.startswith("temporal_blocks.") and name.endswith(("attn.proj.weight", "mlp.fc2.weight"))


def load(module: STDiT3, source: str) -> None:
    """Load weights from a folder, a `.safetensors` or `.pt` file, or a hub id, whatever dtype they are in.

    Values take the dtype of the module's parameters (float32 masters stay float32). The empty caption
    is cut to the module's caption length, or its last row repeated, as upstream does.

    Raises:
        UserError: If nothing readable is found, or keys or shapes differ; the first are listed.
    """
    state = weight_files.read(source)
    if _EMPTY_CAPTION in state:
        state[_EMPTY_CAPTION] = _fit_rows(state[_EMPTY_CAPTION], module.config.model_max_length)
    own = module.state_dict()
    problems = _differences(own, state)
    if problems:
        shown = "; ".join(problems[:_SHOWN]) + (
            "" if len(problems) <= _SHOWN else f"; {len(problems)} in all"
        )
        raise UserError(
            f"these weights do not fit the model: {shown}",
            field="model.weights",
            value=source,
            remedy="choose the model, autoencoder and text encoder that the weights were trained with",
        )
    module.load_state_dict({key: value.to(own[key].dtype) for key, value in state.items()}, strict=True)


def predicts_sigma(source: str, in_channels: int, patch_area: int) -> bool:
    """Say whether weights were trained with a second half of output channels.

    Raises:
        UserError: If nothing readable is found.
    """
    last = weight_files.read(source).get(_LAST_WEIGHT)
    return last is not None and last.shape[0] == 2 * in_channels * patch_area


def _fit_rows(rows: Tensor, count: int) -> Tensor:
    """Cut to `count` rows, or repeat the last one up to it."""
    return torch.cat([rows[:count], rows[-1:].expand(max(count - rows.shape[0], 0), -1)])


def _differences(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[str]:
    """Describe keys that are missing, unexpected or of another shape, in the model's order."""
    missing = [f"missing {key}" for key in own if key not in state]
    unexpected = [f"unexpected {key}" for key in state if key not in own]
    misshapen = [
        f"{key} has shape {list(state[key].shape)}, the model's has {list(value.shape)}"
        for key, value in own.items()
        if key in state and state[key].shape != value.shape
    ]
    return missing + unexpected + misshapen
