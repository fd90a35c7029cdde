"""Build, load and call STDiT3, and wrap both STDiTs for the trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from reelworks.models import weights
from reelworks.models.api import INPUT_ROLES, DenoiserInputs, ShardingPlan
from reelworks.models.families.stdit3.layers import PatchProjection, RotaryEmbedding
from reelworks.models.families.stdit3.model import STDiT3
from reelworks.models.families.stdit3.spec import STDiT3Config
from reelworks.models.lora import inject
from reelworks.models.lora.base_model import Base
from reelworks.models.lora.config import Targets
from reelworks.precision.contract import Contract

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
        state = _from_pixart(state) | {key: value for key, value in module.state_dict().items() if _is_fresh(key)}
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


def predict(module: Any, inputs: DenoiserInputs) -> Tensor:
    """Return all output channels of the network, `[B, C or 2·C, T, H, W]`."""
    out: Tensor = module(
        inputs.latent,
        inputs.time,
        inputs.text[:, None],
        mask=inputs.text_mask,
        x_mask=inputs.frame_mask,
        fps=inputs.fps,
        height=inputs.height,
        width=inputs.width,
        drop_text=inputs.drop_text,
    )
    return out


@final
class STDiTDenoiser:
    """An STDiT2 or STDiT3 network as a `models.api.Denoiser`.

    Attributes:
        module: The network, possibly wrapped by a parallel strategy or adapted by a LoRA.
        contract: Dtypes of its parameters, inputs and outputs.
        latent_channels: Channels of its input latents.
        runs_on_meta: Whether it runs on the meta device.
        base: Identity of the weights below its LoRA; None without a LoRA.
    """

    runs_on_meta = True

    def __init__(
        self,
        module: nn.Module,
        contract: Contract,
        channels: int,
        predict: Callable[[Any, DenoiserInputs], Tensor],
        sharding: ShardingPlan,
    ) -> None:
        assert dict(contract.roles) == INPUT_ROLES
        self.module, self.contract, self.latent_channels = module, contract, channels
        self.base: Base | None = None
        self._predict, self._sharding = predict, sharding
        linear = inject.linear_layers(module)
        self._lora_targets: dict[Targets, list[str]] = {
            "default": [name for name in linear if "attn" in name.split(".")[-2]],
            "blocks": [name for name in linear if "blocks" in name.split(".")[0]],
        }

    def predict(self, inputs: DenoiserInputs) -> Tensor:
        """Return all output channels of the network, `[B, C or 2·C, T, H, W]`."""
        return self._predict(self.module, inputs)

    def sharding(self) -> ShardingPlan:
        """Return the blocks, in order of use."""
        return self._sharding

    def lora_targets(self, of: Targets = "default") -> Sequence[str]:
        """Return the names of the linear layers of all attentions, or all of the blocks."""
        return self._lora_targets[of]


def blocks(module: STDiT3) -> Sequence[nn.Module]:
    """Return the blocks in order of use, so that each can be gathered while the one before computes."""
    pairs = zip(module.spatial_blocks, module.temporal_blocks, strict=True)
    return [block for pair in pairs for block in pair]


@final
@dataclass(frozen=True)
class STDiTNetwork:
    """Builds, loads and calls STDiT networks of one version; satisfies `models.api.FamilyNetwork`.

    Attributes:
        network: Class of the network.
        predict: `predict(module, inputs)` calls a network.
        blocks: `blocks(module)` returns its blocks in order of use.
        fill: `fill(module, source)` loads weights, or draws fresh ones.
    """

    network: Callable[..., nn.Module]
    predict: Callable[[Any, DenoiserInputs], Tensor]
    blocks: Callable[[Any], Sequence[nn.Module]]
    fill: Callable[[Any, str | None], None]

    keeps_file_tensors = False  # the empty caption is cut, and weights that PixArt lacks are drawn

    def build(self, config: STDiT3Config, *, gradient_checkpointing: bool = False) -> nn.Module:
        """Build a network on the default device (shapes only on `meta`)."""
        return self.network(config, gradient_checkpointing=gradient_checkpointing)

    def load(self, module: nn.Module, config: STDiT3Config, source: str | None, part: str | None = None) -> None:
        """Load weights from a folder, a file or a hub id; without a source, draw fresh ones."""
        self.fill(module, source)

    def renamed(self, module: Any, config: STDiT3Config, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors unchanged: these networks have the keys of the release."""
        return state

    def learns_variance(self, config: STDiT3Config, source: str, channels: int) -> bool:
        """Whether weights were trained to predict variance in a second half of output channels."""
        return predicts_sigma(source, channels, math.prod(config.patch_size))

    def denoiser(self, module: nn.Module, contract: Contract, config: STDiT3Config, channels: int) -> STDiTDenoiser:
        """Wrap a network for the trainer."""
        return STDiTDenoiser(module, contract, channels, self.predict, ShardingPlan(self.blocks(module)))


NETWORK = STDiTNetwork(STDiT3, predict, blocks, fill)
