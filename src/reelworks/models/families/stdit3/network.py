"""Build, load and call STDiT3; both STDiTs are built and loaded alike."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from reelworks.data.distributed.contract import Contract
from reelworks.models.api import DenoiserInputs
from reelworks.models.diffusers_denoiser import FamilyDenoiser, Predict
from reelworks.models.families.stdit3.layers import PatchProjection, RotaryEmbedding
from reelworks.models.families.stdit3.model import STDiT3
from reelworks.models.families.stdit3.spec import STDiT3Config
from reelworks.models.recompute import Recompute
from reelworks.models.storage import weights

_EMPTY_CAPTION = "y_embedder.y_embedding"
_FIRST_WEIGHT = "x_embedder.proj.weight"
# Parameters that picture networks lack; they keep their fresh values.
_NOT_IN_PICTURE_WEIGHTS = ("rope.", "fps_embedder.", "temporal_blocks.")
_NORMS = ("q_norm.weight", "k_norm.weight")


@final
@dataclass(frozen=True)
class STDiTNetwork:
    """Builds, loads and calls STDiT networks of one version; satisfies `models.api.FamilyNetwork`."""

    network: Callable[..., nn.Module]  # class of the network
    predict: Predict  # see `models.api.Denoiser.predict`
    # Pattern of the names of fresh parameters that are zero, so that a fresh model treats frames as pictures.
    zeroed: str

    keeps_file_tensors = False  # the empty caption is cut, and weights that PixArt lacks are drawn

    def build(self, config: STDiT3Config, *, gradient_checkpointing: Recompute = False) -> nn.Module:
        """Build a network on the default device (shapes only on `meta`), without values."""
        return self.network(config, gradient_checkpointing=gradient_checkpointing)

    def load(self, module: nn.Module, config: STDiT3Config, source: str | None, part: str | None = None) -> None:
        """Load weights of any dtype from a folder, a `.safetensors` or `.pt` file, or a hub id; draw them without one.

        Values take the dtype of the module's parameters (float32 masters stay float32). The empty caption is cut to
        the module's caption length, or its last row repeated, as upstream does. A file of PixArt-Σ, a picture model,
        fills the spatial blocks of STDiT3; the rest is drawn fresh.
        """
        if source is None:
            self.init(module, config)
            return
        state = weights.read(source)
        if _EMPTY_CAPTION in state:
            rows = state[_EMPTY_CAPTION]
            missing = max(config.model_max_length - rows.shape[0], 0)
            state[_EMPTY_CAPTION] = torch.cat([rows[: config.model_max_length], rows[-1:].expand(missing, -1)])
        if isinstance(module, STDiT3) and _FIRST_WEIGHT in state and state[_FIRST_WEIGHT].ndim == 4:
            self.init(module, config)
            fresh = {
                key: value
                for key, value in module.state_dict().items()
                if key.startswith(_NOT_IN_PICTURE_WEIGHTS) or key.endswith(_NORMS)
            }
            state = _from_pixart(state) | fresh
        weights.load_into(module, state, source)

    @torch.no_grad()
    def init(self, module: nn.Module, config: STDiT3Config) -> None:
        """Draw fresh weights from the global generator, by the rules of v1.1 and v1.2."""
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
            elif name == "fps_embedder.mlp.2.weight" or re.fullmatch(self.zeroed, name):
                nn.init.zeros_(parameter)
        nn.init.normal_(module.get_buffer(_EMPTY_CAPTION), std=config.caption_channels**-0.5)

    def rename_keys(self, module: Any, config: STDiT3Config, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors unchanged: these networks have the keys of the release."""
        return state

    def learns_variance(self, config: STDiT3Config, source: str, channels: int) -> bool:
        """Whether weights were trained to predict variance in a second half of output channels."""
        last = weights.read(source).get("final_layer.linear.weight")
        return last is not None and last.shape[0] == 2 * channels * math.prod(config.patch_size)

    def denoiser(self, module: nn.Module, contract: Contract, config: STDiT3Config, channels: int) -> FamilyDenoiser:
        """Wrap a network for the trainer."""
        return FamilyDenoiser(module, contract, config, channels, self.predict)


def _from_pixart(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename PixArt-Σ's tensors to STDiT3's keys, without its stored positions, which STDiT3 computes."""
    renamed = {
        f"spatial_{key}" if key.startswith("blocks.") else key: value
        for key, value in state.items()
        if key != "pos_embed"
    }
    return renamed | {_FIRST_WEIGHT: state[_FIRST_WEIGHT].unsqueeze(2)}


def predict(module: Any, inputs: DenoiserInputs, config: STDiT3Config, **more: Tensor) -> Tensor:
    """Return all output channels of the network, which may take `more` inputs: `[B, C or 2·C, T, H, W]`."""
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
        **more,
    )
    return out


NETWORK = STDiTNetwork(STDiT3, predict, zeroed=r"temporal_blocks\..*(attn\.proj|mlp\.fc2)\.weight")
