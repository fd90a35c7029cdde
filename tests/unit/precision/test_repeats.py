"""Operations on the meta device that were run before: their results have the layout that torch gives them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from reelworks.models.precision.repeats import Repeats
from reelworks.testing import contract

OPERATIONS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: a + b,
    lambda a, b: a * 2,
    lambda a, b: a * 2.0,
    lambda a, b: True * a,
    lambda a, b: 1 - a,
    lambda a, b: 1 / a,
    lambda a, b: torch.cat([a, b]),
    lambda a, b: torch.stack([a, b], dim=1),
    lambda a, b: torch.where(a > 0, a, b),
    lambda a, b: functional.layer_norm(a.float(), a.shape[-1:]),
    lambda a, b: functional.linear(a.float(), b.float()),
    lambda a, b: functional.scaled_dot_product_attention(*[a.bfloat16()[None]] * 3),
    lambda a, b: torch.arange(a.shape[0], dtype=b.dtype, device=a.device),
    lambda a, b: a.float().mean(dim=0, keepdim=True),
    lambda a, b: a.float().sin_(),
]
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


def layout(value: Tensor) -> object:
    return value.size(), value.stride(), value.dtype, value.device


@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), *[st.sampled_from(DTYPES)] * 2, st.booleans()), max_size=12))
def test_results_are_laid_out_as_those_of_torch(
    calls: list[tuple[Callable[..., Tensor], torch.dtype, torch.dtype, bool]],
) -> None:
    """Whatever was run before, with other numbers of other types; what torch refuses is refused each time."""
    with torch.no_grad():
        repeats = Repeats()
        for operation, one, other, turned in calls * 2:
            a, b = (torch.empty(4, 4, dtype=dtype, device="meta") for dtype in (one, other))
            a = a.T if turned else a
            try:
                expected = layout(operation(a, b))
            except RuntimeError as error:
                with repeats, pytest.raises(type(error)):
                    operation(a, b)
            else:
                with repeats:
                    assert layout(operation(a, b)) == expected


@pytest.mark.parametrize("name", ["stdit3-tiny", "flux-tiny"])
@pytest.mark.slow
def test_a_network_that_is_run_again_gives_what_it_gave(name: str) -> None:
    """The layouts of the results of all modules, of several shapes in turn."""
    denoiser = contract.build(name)
    denoiser.module.to("meta")
    found: list[object] = []
    for module in denoiser.module.modules():
        module.register_forward_hook(lambda _module, _args, out: found.append(layouts(out)))
    passes = []
    with torch.no_grad():
        for mode in (contextlib.nullcontext(), Repeats()):
            found.clear()
            for shape in contract.shapes(name) * 2:
                with mode:
                    denoiser.predict(contract.example(shape, name).each(lambda value: value.to("meta")))
            passes.append([*found])
    assert passes[0] == passes[1]
    assert len(passes[0]) > 50


def layouts(out: object) -> object:
    return tuple(map(layouts, out)) if isinstance(out, tuple) else layout(out) if isinstance(out, Tensor) else None
