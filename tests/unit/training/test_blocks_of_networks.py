"""What is told, updated and counted by block is that of blocks, also where a model has several networks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel

from reelworks.data.distributed.mesh import World
from reelworks.models.api import Denoiser
from reelworks.models.text.trained_texts import CaptionedDenoiser, ClipTexts
from reelworks.testing import contract
from reelworks.training.memory import estimate
from reelworks.training.step import block_norms, optimizers

LAYERS = "text_encoder.text_model.encoder.layers"
BLOCKS = {
    "wan-2.2-tiny": [f"{part}.blocks.{i}" for part in ("transformer", "transformer_2") for i in range(2)],
    "sdxl-tiny": [
        *(f"unet.{way}_blocks.{i}" for way in ("down", "up") for i in range(2)),
        f"{LAYERS}.0",
        f"{LAYERS}.1",
    ],
}


@pytest.fixture(params=BLOCKS)
def several(request: pytest.FixtureRequest) -> tuple[Denoiser, list[str]]:
    """Two experts, or a network with its text encoder, and the paths of their blocks."""
    denoiser: Denoiser = contract.build(request.param)
    if request.param == "sdxl-tiny":
        sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 20}
        texts = ClipTexts(CLIPTextModel(CLIPTextConfig(num_hidden_layers=2, **sizes)), lambda *_: None)
        denoiser = CaptionedDenoiser(denoiser, {"text_encoder": texts})
    return denoiser, BLOCKS[request.param]


def test_norms_are_those_of_blocks_and_of_what_lies_outside(several: tuple[Denoiser, list[str]]) -> None:
    """As sums of squares in float64 by the names of weights say."""
    denoiser, blocks = several
    wanted = dict.fromkeys([*blocks, block_norms.REST], 0.0)
    for name, parameter in denoiser.module.named_parameters():
        parameter.grad = torch.randn_like(parameter)
        place = next((block for block in blocks if name.startswith(f"{block}.")), block_norms.REST)
        wanted[place] += float(parameter.grad.double().square().sum())
    listed, world = denoiser.sharding().blocks, World(0, 1, torch.device("cpu"))
    squares = block_norms.squares(denoiser.module, listed, world)
    found = block_norms.by_name(denoiser.module, listed, squares.tolist())
    assert found == pytest.approx({name: math.sqrt(value) for name, value in wanted.items()}, rel=1e-5)
    assert min(found.values()) > 0


def test_matrices_of_blocks_are_no_others(several: tuple[Denoiser, list[str]]) -> None:
    denoiser, blocks = several
    layers = {name for name, layer in denoiser.module.named_modules() if isinstance(layer, nn.Linear)}
    inner = {f"{layer}.weight" for layer in layers if layer.startswith(tuple(f"{block}." for block in blocks))}
    assert optimizers.matrices(denoiser.module, denoiser.sharding().blocks) == inner
    assert 0 < len(inner) < len(layers)


def test_two_blocks_are_in_use_beside_what_lies_outside(several: tuple[Denoiser, list[str]]) -> None:
    denoiser, blocks = several
    sizes = [sum(p.nbytes for p in denoiser.module.get_submodule(block).parameters()) for block in blocks]
    outside = sum(p.nbytes for p in denoiser.module.parameters()) - sum(sizes)
    wanted = outside + sum(sorted(sizes)[-2:])
    assert estimate.bytes_in_use(denoiser.module, denoiser.sharding().blocks) == wanted


def test_each_network_is_a_unit_of_shards_after_its_blocks(several: tuple[Denoiser, list[str]]) -> None:
    """Since one of them is called without the others."""
    denoiser, _ = several
    plan = denoiser.sharding()
    assert plan.units == [*plan.blocks, *denoiser.module.children()]
