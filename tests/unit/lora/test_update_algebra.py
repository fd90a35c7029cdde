"""What each type of update answers is what dense algebra and peft's own merge say."""

from __future__ import annotations

import math

import pytest
import torch
from adapters import adapted
from hypothesis import given
from hypothesis import strategies as st
from lora_files import random
from refused import refused
from torch import Tensor

from reelworks.models.adapters import inject, key_mapping, low_rank
from reelworks.models.adapters.adapter_types.registry import TYPES
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.adapters.low_rank import LowRank
from reelworks.testing import contract

SIZES = st.integers(1, 7)


@st.composite
def products(draw: st.DrawFn) -> LowRank:
    rows, rank, columns, seed = (draw(SIZES), draw(SIZES), draw(SIZES), draw(st.integers(0, 99)))
    return LowRank(random(rows, rank, seed=seed), random(rank, columns, seed=seed + 1))


def dense(product: LowRank) -> Tensor:
    return product.B.double() @ product.A.double()


@given(products(), st.floats(-3, 3), st.integers(0, 99))
def test_a_sum_is_exact_and_its_norms_are_those_of_the_matrices(one: LowRank, factor: float, seed: int) -> None:
    other = LowRank(random(len(one.B), 2, seed=seed), random(2, one.A.shape[1], seed=seed + 7))
    total = low_rank.add([one, other.scaled(factor)])
    assert total.rank == one.rank + 2
    wanted = dense(one) + factor * dense(other)
    torch.testing.assert_close(dense(total), wanted, rtol=1e-5, atol=1e-5)
    assert math.isclose(one.norm(), float(dense(one).norm()), rel_tol=1e-6, abs_tol=1e-6)
    assert math.isclose(one.distance(other), float((dense(one) - dense(other)).norm()), rel_tol=1e-5, abs_tol=1e-5)


@given(products(), st.integers(-60, 60), st.integers(-60, 60))
def test_factors_are_balanced_exactly(product: LowRank, of_B: int, of_A: int) -> None:
    factors = LowRank(product.B * 2.0**of_B, product.A * 2.0**of_A)
    factors.B[:, 0] = 0  # which no power of two makes larger
    balanced = factors.balanced()
    assert torch.equal(dense(balanced), dense(factors))
    ratio = balanced.B[:, 1:].abs().amax(dim=0) / balanced.A[1:].abs().amax(dim=1)
    assert bool(((ratio >= 0.5) & (ratio <= 2)).all())


@given(products(), st.integers(1, 7), st.floats(0.01, 1))
def test_a_truncated_product_is_the_nearest_of_its_rank(product: LowRank, rank: int, share: float) -> None:
    """Its error is that of the dense decomposition, and no smaller rank keeps the share that is asked for."""
    spectrum, values = low_rank.spectrum(product), torch.linalg.svdvals(dense(product))
    torch.testing.assert_close(spectrum.values[: len(values)], values[: len(spectrum.values)], rtol=1e-4, atol=1e-5)
    short = spectrum.truncate(rank)
    assert short.rank <= rank
    distance = float((dense(product) - dense(short)).norm())
    assert math.isclose(distance, float(values[rank:].square().sum()) ** 0.5, rel_tol=1e-4, abs_tol=1e-4)
    assert math.isclose(spectrum.left_out(rank), distance, rel_tol=1e-3, abs_tol=1e-4)
    kept, squares = spectrum.rank_for(share), spectrum.values.square()
    assert squares[:kept].sum() >= share * squares.sum() * (1 - 1e-9)
    assert kept == 1 or squares[: kept - 1].sum() < share * squares.sum()


def test_a_product_of_zeros_has_rank_1() -> None:
    nothing = low_rank.spectrum(LowRank(torch.zeros(5, 3), torch.zeros(3, 4)))
    assert (nothing.rank_for(0.98), nothing.norm(), nothing.left_out(1)) == (1, 0, 0)
    assert not dense(nothing.truncate(2)).any()


def test_a_large_matrix_is_approximated_as_well_as_exactly_to_a_percent() -> None:
    """By random columns, the same ones each time, and without a change of the global generator."""
    matrix = random(1050, 1040, seed=0) @ torch.diag(torch.linspace(1, 0, 1040) ** 8)
    state = torch.get_rng_state()
    found = low_rank.approximate(matrix, 8)
    assert torch.equal(torch.get_rng_state(), state)
    values = torch.linalg.svdvals(matrix)
    best = float(values[8:].square().sum()) ** 0.5
    assert best <= float((matrix - found.B @ found.A).norm()) < 1.01 * best
    assert torch.equal(found.B, low_rank.approximate(matrix, 8).B)


SETTINGS = {
    "lora": LoraConfig(rank=3, alpha=2.3),
    "dora": LoraConfig(rank=3, alpha=2.3, dora=True),
    "lokr": LoraConfig(type="lokr", rank=2, alpha=2.3),
    "lokr of low ranks": LoraConfig(type="lokr", rank=1, alpha=2.3, decompose_both=True, decompose_factor=4),
    "lokr of full factors": LoraConfig(type="lokr", rank=99, alpha=2.3, decompose_factor=2),
    "loha": LoraConfig(type="loha", rank=2, alpha=2.3),
    "loha of high rank": LoraConfig(type="loha", rank=6, alpha=2.3),
    "oft": LoraConfig(type="oft", block_size=4),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_an_update_is_what_peft_merges(name: str) -> None:
    """Whole and some rows of it; as a product, by its singular values, and by its norm, where it has these."""
    config = SETTINGS[name]
    kind, adapter = config.kind, config.adapter
    base = contract.build("wan-tiny").module.state_dict()
    denoiser = adapted("wan-tiny", config)
    layers = inject.group_by_layer(inject.weights(denoiser.module))
    merged = inject.merge(denoiser.module)
    for layer in list(layers)[:3]:
        kinds = layers[layer]
        if kind.rank_of(kinds):
            kinds = key_mapping.multiply(kind, kinds, adapter.alpha / adapter.rank)
        weight, wanted, rows = base[f"{layer}.weight"], merged[f"{layer}.weight"], slice(2, 7)
        torch.testing.assert_close(kind.applied(weight, kinds, 1.0, slice(None)), wanted)
        torch.testing.assert_close(kind.applied(weight[rows], kinds, 1.0, rows), wanted[rows])
        if kind.depends_on_weight(kinds):
            for ask in (kind.delta, kind.factors, kind.spectrum):
                with refused("adapter-without-answer"):
                    ask(kinds)
            assert (kind.norm(kinds), kind.distance(kinds, kinds)) == (None, None)
            continue
        update = wanted - weight
        tolerance = {"rtol": 1e-4, "atol": 1e-5}
        assert kind.shape(kinds) == weight.shape
        torch.testing.assert_close(kind.delta(kinds), update, **tolerance)
        torch.testing.assert_close(kind.delta(kinds, rows), update[rows], **tolerance)
        torch.testing.assert_close(kind.applied(weight, kinds, -0.5, slice(None)), weight - 0.5 * update, **tolerance)
        torch.testing.assert_close(dense(kind.factors(kinds)).float(), update, **tolerance)
        spectrum = kind.spectrum(kinds)
        torch.testing.assert_close(dense(spectrum.truncate(len(spectrum.values))).float(), update, **tolerance)
        values = torch.linalg.svdvals(update.double())
        torch.testing.assert_close(spectrum.values[: len(values)], values[: len(spectrum.values)], rtol=1e-3, atol=1e-4)
        norm, distance = kind.norm(kinds), kind.distance(kinds, key_mapping.multiply(kind, kinds, 0.5))
        assert norm is not None
        assert distance is not None
        assert math.isclose(norm, float(update.norm()), rel_tol=1e-4)
        assert math.isclose(distance, norm / 2, rel_tol=1e-3)


def test_a_rotation_has_no_strength() -> None:
    oft = TYPES["oft"]
    with refused("adapter-without-strength"):
        oft.applied(random(3, 8, seed=0), {"oft_R": random(2, 6, seed=1)}, 0.5, slice(None))


@pytest.mark.parametrize("kernel", [(3, 3), (1, 1), (2, 3, 3)])
def test_convolutions_have_the_algebra_of_matrices(kernel: tuple[int, ...]) -> None:
    """Two factors and LyCORIS's three, with the kernel among the inputs; what is made flat gets its shape back."""
    kind, ones = TYPES["lora"], (1,) * len(kernel)
    A, B = random(2, 5, *kernel, seed=0), random(7, 2, *ones, seed=1)
    flat = kind.flat({"A": A, "B": B})
    wanted = torch.einsum("or...,ri...->oi...", B, A)
    torch.testing.assert_close(kind.delta(flat), wanted.flatten(1))
    assert {each: value.shape for each, value in kind.with_kernel(flat, kernel).items()} == {"A": A.shape, "B": B.shape}
    small, mid = random(2, 5, *ones, seed=2), random(2, 2, *kernel, seed=3)
    wanted = torch.einsum("or,rs...,si->oi...", B.flatten(1), mid, small.flatten(1))
    torch.testing.assert_close(kind.delta(kind.flat({"A": small, "B": B, "mid": mid})), wanted.flatten(1))
    lokr, w1, w2 = TYPES["lokr"], random(2, 3, seed=4), random(4, 5, *kernel, seed=5)
    flat = lokr.flat({"lokr_w1": w1, "lokr_w2": w2})
    whole = torch.kron(w1.reshape(2, 3, *ones), w2)
    torch.testing.assert_close(lokr.delta(flat), whole.flatten(1))
    assert lokr.with_kernel(flat, kernel)["lokr_w2"].shape == w2.shape
