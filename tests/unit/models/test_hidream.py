"""HiDream-I1: tokens go through experts as in diffusers, with gradients in any mode, and only the chosen ones are counted."""

from __future__ import annotations

import copy

import pytest
import tiny_families
import torch
from diffusers.models.transformers.transformer_hidream_image import MOEFeedForwardSwiGLU
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from reelworks.core.shape import Shape
from reelworks.models import components
from reelworks.models.config import AutoencoderConfig, ModelConfig
from reelworks.models.families.hidream.network import RoutedExperts

WIDTH = 16


def experts(count: int = 4, chosen: int = 2) -> tuple[nn.Module, RoutedExperts]:
    """Those of diffusers, and ours with the same weights."""
    torch.manual_seed(0)
    theirs = MOEFeedForwardSwiGLU(WIDTH, 4 * WIDTH, count, chosen).double()
    return theirs, RoutedExperts(copy.deepcopy(theirs))


def gradients(module: nn.Module, hidden: Tensor) -> tuple[Tensor, dict[str, Tensor | None]]:
    hidden = hidden.clone().requires_grad_()
    out = module(hidden)
    torch.autograd.backward((out * torch.linspace(-1, 1, WIDTH, dtype=out.dtype)).square().sum())
    return out.detach(), {"": hidden.grad} | {name: p.grad for name, p in module.named_parameters()}


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("tokens", [1, 7, 64])
def test_experts_are_those_of_diffusers_in_training(trains: bool, tokens: int) -> None:
    """Outputs are those of its inference too, which has no gradients; an expert without a token has zeros."""
    theirs, ours = experts()
    hidden = torch.randn(2, tokens, WIDTH, dtype=torch.float64)
    wanted, wanted_gradients = gradients(theirs.train(), hidden)
    found, found_gradients = gradients(ours.train(trains), hidden)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(theirs.eval()(hidden), wanted)
    assert found_gradients.keys() == wanted_gradients.keys()
    for name, value in wanted_gradients.items():
        torch.testing.assert_close(found_gradients[name], value, msg=name)


def test_only_chosen_experts_are_counted() -> None:
    """On the meta device each expert has an equal share of what the chosen ones compute."""
    _, ours = experts()
    counts = {}
    for device in ("cpu", "meta"):
        with FlopCounterMode(display=False) as counter:
            ours.to(device)(torch.zeros(2, 32, WIDTH, dtype=torch.float64, device=device))
        counts[device] = counter.get_total_flops()
    layers = {name: p.numel() for name, p in ours.named_parameters()}
    of_expert = sum(size for name, size in layers.items() if name.startswith("experts.0."))
    shared = sum(size for name, size in layers.items() if name.startswith(("shared_experts.", "gate.")))
    assert counts["meta"] == counts["cpu"] == 2 * 64 * (2 * of_expert + shared)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.slow
def test_a_compiled_block_leaves_its_experts_as_they_are() -> None:
    """Other numbers of tokens for the experts compile nothing anew."""
    network = tiny_families.network("hidream-i1-tiny")
    block, rotations = network.single_stream_blocks[0], network.pe_embedder(torch.zeros(1, 12, 3))
    compiled = torch.compile(block.forward, dynamic=False, backend="aot_eager")
    graphs = []
    for seed in range(3):
        torch.manual_seed(seed)
        hidden, time = torch.randn(1, 12, 32), torch.randn(1, 32)
        found = []
        for forward in (block.forward, compiled):
            block.zero_grad()
            out = forward(hidden, temb=time, image_rotary_emb=rotations)
            torch.autograd.backward(out.square().sum())
            found.append([out, *(p.grad.clone() for p in block.parameters())])
        for ours, wanted in zip(*found, strict=True):
            torch.testing.assert_close(ours, wanted)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert len(set(graphs)) == 1


def test_pictures_that_are_not_square_count_as_filled_up() -> None:
    """In buckets, and so in plans and in estimates of memory and time; larger ones have no more than their own tokens."""
    model = ModelConfig(name="hidream-i1-full")
    geometry = components.geometry(model, AutoencoderConfig(name="flux", weights="-"))
    sizes = {(512, 512): 1024, (512, 768): 4096, (832, 1216): 4096, (1024, 1024): 4096, (1024, 2048): 8192}
    for (height, width), tokens in sizes.items():
        assert geometry.tokens(Shape(1, height, width)) == tokens
