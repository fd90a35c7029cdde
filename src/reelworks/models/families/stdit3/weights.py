"""Draw fresh weights of STDiT3, or check and load existing ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reelworks.models import weights
from reelworks.models.families.stdit3.embeddings import PatchProjection, RotaryEmbedding
from reelworks.models.families.stdit3.model import STDiT3
from reelworks.models.families.stdit3.spec import STDiT3Config

_EMPTY_CAPTION = "y_embedder.y_embedding"
_FIRST_WEIGHT = "x_embedder.proj.weight"
_LAST_WEIGHT = "final_layer.linear.weight"
# Parameters that picture networks lack; they keep their fresh values.
_NOT_IN_PICTURE_WEIGHTS = ("rope.", "fps_embedder.", "temporal_blocks.")
_NORMS = ("q_norm.weight", "k_norm.weight")


def fill(module: STDiT3, source: str | None) -> None:
    """Load the weights of a source, or draw fresh ones without a source."""
    if source is None:
        init(module)
    else:
        load(module, source)


@torch.no_grad()
def init(module: STDiT3) -> None:
    """Draw fresh weights from the global generator, by v1.2's rules.

    Temporal blocks add zeros at first, so that a fresh model treats frames as pictures.
    """
    draw(module, module.config)
    for name, parameter in module.named_parameters():
        if name.startswith("temporal_blocks.") and name.endswith(("attn.proj.weight", "mlp.fc2.weight")):
            nn.init.zeros_(parameter)


def draw(module: nn.Module, config: STDiT3Config) -> None:
    """Draw all weights by the rules that v1.1 and v1.2 share."""
    for child in module.modules():
        if isinstance(child, nn.Linear):
            nn.init.xavier_uniform_(child.weight)
            nn.init.zeros_(child.bias)
        elif isinstance(child, PatchProjection):
            child.reset_parameters()
        elif isinstance(child, RotaryEmbedding):
            child.reset()
    for name, parameter in module.named_parameters():
        if "scale_shift_table" in name:
            nn.init.normal_(parameter, std=config.hidden_size**-0.5)
        elif name.endswith(_NORMS):
            nn.init.ones_(parameter)
        elif name == "fps_embedder.mlp.0.weight":
            nn.init.normal_(parameter, std=0.02)
        elif name == "fps_embedder.mlp.2.weight":
            nn.init.zeros_(parameter)
    nn.init.normal_(module.get_buffer(_EMPTY_CAPTION), std=config.caption_channels**-0.5)


def load(module: STDiT3, source: str) -> None:
    """Load weights of any dtype from a folder, a `.safetensors` or `.pt` file, or a hub id.

    Values take the dtype of the module's parameters (float32 masters stay float32). The empty caption is cut to
    the module's caption length, or its last row repeated, as upstream does. A file of PixArt-Σ, a picture model,
    fills the spatial blocks; the rest is drawn fresh, so that frames are treated as pictures at first.

    Raises:
        UserError: If nothing readable is found, or keys or shapes differ; the message lists the first.
    """
    state = weights.read(source)
    fit_caption(state, module.config.model_max_length)
    if _are_picture_weights(state):
        init(module)
        state = _from_pixart(state) | {
            key: value for key, value in module.state_dict().items() if _is_fresh(key)
        }
    weights.load_into(module, state, source)


def _are_picture_weights(state: dict[str, Tensor]) -> bool:
    """Whether patches have the two axes of a picture instead of the three of a clip."""
    return _FIRST_WEIGHT in state and state[_FIRST_WEIGHT].ndim == 4


def _is_fresh(key: str) -> bool:
    return key.startswith(_NOT_IN_PICTURE_WEIGHTS) or key.endswith(_NORMS)


def _from_pixart(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename PixArt-Σ's tensors to STDiT3's keys, without its stored positions, which STDiT3 computes."""
    renamed = {
        f"spatial_{key}" if key.startswith("blocks.") else key: value
        for key, value in state.items()
        if key != "pos_embed"
    }
    return renamed | {_FIRST_WEIGHT: state[_FIRST_WEIGHT].unsqueeze(2)}


def fit_caption(state: dict[str, Tensor], length: int) -> None:
    """Cut the empty caption of a state to `length` rows, or repeat its last one up to it, in place."""
    if _EMPTY_CAPTION in state:
        rows = state[_EMPTY_CAPTION]
        missing = max(length - rows.shape[0], 0)
        state[_EMPTY_CAPTION] = torch.cat([rows[:length], rows[-1:].expand(missing, -1)])


def predicts_sigma(source: str, in_channels: int, patch_area: int) -> bool:
    """Whether weights were trained with a second half of output channels.

    Raises:
        UserError: If nothing readable is found.
    """
    last = weights.read(source).get(_LAST_WEIGHT)
    return last is not None and last.shape[0] == 2 * in_channels * patch_area
