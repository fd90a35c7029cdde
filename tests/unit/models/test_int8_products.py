"""Products of a frozen int8 base in 8 bits: how exact they are, where they are taken, and that gradients stay."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from refused import refused
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from reelworks.models.adapters import frozen
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.adapters.frozen import QuantizedLinear
from reelworks.models.storage import scaled_weights
from reelworks.testing import contract

BF16 = torch.bfloat16


def rows(count: int, width: int, *, outliers: bool, seed: int = 0) -> Tensor:
    """Inputs of a layer, of which one in a hundred is 50 times as large as the others if there are outliers."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(count, width, generator=generator)
    if outliers:
        found[:, torch.randperm(width, generator=generator)[: max(width // 100, 1)]] *= 50
    return found


def off(found: Tensor, wanted: Tensor) -> float:
    return float((found.float() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(("width", "out"), [(64, 96), (1152, 1152), (1536, 1536)])
@pytest.mark.parametrize("outliers", [False, True])
@pytest.mark.quick_cases(4)
def test_products_are_within_two_percent_with_outliers_too(width: int, out: int, outliers: bool) -> None:
    """Of exact ones, and far nearer than without rotation where there are outliers."""
    weight = torch.randn(out, width, generator=torch.Generator().manual_seed(1)) / width**0.5
    x, bias = rows(128, width, outliers=outliers), torch.linspace(-1, 1, out)
    wanted = functional.linear(x, weight, bias)
    group = frozen.rotation_group(width)
    assert group == {64: 64, 1152: 64, 1536: 256}[width]
    rotated, plain = (
        off(frozen.int8_product(x.to(BF16), frozen.quantize(weight, "int8", scaled_weights.rotation(of)), bias), wanted)
        for of in (group, 0)
    )
    assert rotated < 0.02
    if outliers and width > 64:  # of few inputs, one outlier is most of the sum
        assert rotated < plain / 2


def test_a_rotated_weight_is_the_weight() -> None:
    weight = torch.randn(24, 128, generator=torch.Generator().manual_seed(0))
    for group in (0, 16, 64):
        found = frozen.quantize(weight, "int8", scaled_weights.rotation(group))
        assert off(frozen.dequantize(found, "int8", (24, 128), torch.float32), weight) < 0.02


def test_rows_of_zeros_and_faults_are_not_hidden() -> None:
    layer = QuantizedLinear(nn.Linear(64, 16, bias=False), "int8", int8_products=True)
    x = rows(20, 64, outliers=False)
    x[3], x[5, 0], x[7, 0] = 0, torch.nan, torch.inf
    out = layer(x)
    assert not out[3].any()
    assert out[[5, 7]].isnan().all()
    assert out[[0, 1, 2, 4, 6]].isfinite().all()


def layer_of(width: int, out: int) -> QuantizedLinear:
    torch.manual_seed(0)
    return QuantizedLinear(nn.Linear(width, out).requires_grad_(False), "int8", int8_products=True)


@pytest.mark.parametrize(
    ("count", "width", "out", "eight"),
    [(17, 64, 24, True), (16, 64, 24, False), (40, 60, 24, False), (40, 64, 20, False)],
)
def test_sizes_that_gpus_do_not_take_are_multiplied_as_without(count: int, width: int, out: int, eight: bool) -> None:
    layer, x = layer_of(width, out), rows(count, width, outliers=False)[None]
    plain = functional.linear(x, layer.weight, layer.bias)
    assert torch.equal(layer(x), plain) == (not eight)
    assert off(layer(x), plain) < 0.03
    assert layer(x).shape == (1, count, out)


@pytest.mark.parametrize("recomputes", [False, True])
def test_gradients_are_those_of_the_widened_weight(recomputes: bool) -> None:
    layer, x = layer_of(64, 24), rows(40, 64, outliers=False).requires_grad_()
    with contract.counted() as kept:
        out: Any = checkpoint(layer, x, use_reentrant=False) if recomputes else layer(x)
    assert kept.bytes <= x.nbytes * recomputes
    upstream = torch.randn(40, 24, generator=torch.Generator().manual_seed(2))
    (found,) = torch.autograd.grad(out, x, upstream)
    assert torch.equal(found, upstream @ layer.weight)
    assert torch.equal(out, layer(x))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated.*:DeprecationWarning")  # by torch's compiler itself
def test_compiled_layers_are_one_graph_and_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)
    network = nn.Sequential(layer_of(64, 96), nn.GELU(), layer_of(96, 64))
    x, found = rows(40, 64, outliers=True).requires_grad_(), []
    torch._dynamo.utils.counters.clear()
    for run in (network, torch.compile(network, backend="aot_eager", dynamic=False, fullgraph=True)):
        with torch.autocast("cpu", BF16):
            out = run(x)
        (gradient,) = torch.autograd.grad(out.float().square().sum(), x)
        found.append((out.detach(), gradient))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    for one, other in zip(*found, strict=True):
        assert off(other, one.float()) < 0.01
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["wan-tiny", "flux-tiny"])
def test_a_network_learns_nearly_the_same(name: str) -> None:
    """Its answer and the gradients of its LoRA differ by a few percent, and recomputation changes neither."""
    inputs = contract.example(contract.shapes(name)[-1], name)
    plain, eight, again = (
        contract.answer(
            contract.with_lora(name, "int8", BF16, int8_products=products, gradient_checkpointing=recomputes), inputs
        )
        for products, recomputes in ((False, False), (True, False), (True, True))
    )
    assert plain.keys() == eight.keys()
    for key, wanted in plain.items():
        assert torch.equal(eight[key], again[key]), key
        assert off(eight[key], wanted.float()) < 0.15, key
    assert 0 < off(eight[""], plain[""].float()) < 0.05


@pytest.mark.parametrize("base", [None, "bfloat16", "nf4", "gguf"])
def test_a_base_without_int8_codes_is_refused(base: Any) -> None:
    with pytest.raises(ValidationError, match="products in 8 bits need a base in int8"):
        LoraConfig(base=base, int8_products=True)


def test_a_device_without_such_products_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Tensor) -> Tensor:
        raise NotImplementedError("Could not run 'aten::_int_mm' with arguments from this backend.")

    monkeypatch.setattr(torch, "_int_mm", missing)
    with refused("no-int8-products", "lora.int8_products", says="aten::_int_mm"):
        contract.with_lora("wan-tiny", "int8", BF16, int8_products=True)
