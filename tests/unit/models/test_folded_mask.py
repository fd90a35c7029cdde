"""A mask of keys that is folded into the width of heads hides the same keys as the mask, to the last bit of a weight."""

from __future__ import annotations

import pytest
import tiny_recipe
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from reelworks.models.attention import folded_mask
from reelworks.models.attention.attention_calls import Recorder
from reelworks.models.families.stdit3 import layers
from reelworks.training.assembly import build
from reelworks.training.memory import dry_run, meter
from reelworks.training.memory.measurements import bucket_table
from reelworks.training.recipe import recipe_file

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=3)  # of captions, of up to nine tokens


def case(lengths: list[int], width: int, dtype: torch.dtype, seed: int, size: float = 1.0) -> list[Tensor]:
    """Return queries, keys, values and the mask of clips with captions of these lengths."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(len(lengths), 2, places, width) for places in (13, 9, 9)]
    tensors = [size * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    mask = torch.arange(9) < torch.tensor(lengths)[:, None]
    return [*(tensor.to(dtype).requires_grad_() for tensor in tensors), mask[:, None, None]]


def exact(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attention by its definition."""
    logits = (query @ key.mT * query.shape[-1] ** -0.5).masked_fill(~mask, -torch.inf)
    return logits.softmax(-1) @ value


def answers(attend, tensors: list[Tensor]) -> list[Tensor]:
    """The result, and the gradients of queries, keys and values."""
    out = attend(*tensors)
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), tensors[:3])]


@settings(max_examples=40, deadline=None)
@given(
    lengths=LENGTHS,
    width=st.sampled_from([8, 24, 64, 72]),
    seed=st.integers(0, 99),
    size=st.sampled_from([0.1, 1.0, 8.0]),
)
def test_it_is_attention_with_the_mask(lengths: list[int], width: int, seed: int, size: float) -> None:
    """In float64, for logits of some hundreds too; hidden keys and values have no gradient at all."""
    tensors = case(lengths, width, torch.float64, seed, size)
    found, expected = answers(folded_mask.fold, tensors), answers(exact, tensors)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    hidden = ~tensors[3].mT.expand_as(tensors[1])
    assert not found[2][hidden].any()
    assert not found[3][hidden].any()


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 8),
    tokens=st.integers(1, 9),
    width=st.sampled_from([8, 24, 64, 72]),
    seed=st.integers(0, 99),
    size=st.sampled_from([0.1, 1.0, 8.0]),
)
def test_sequences_that_are_computed_as_one_attend_within_themselves(
    count: int, tokens: int, width: int, seed: int, size: float
) -> None:
    """In float64: results and gradients are those of each sequence alone."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2 * count, 3, tokens, width)
    tensors = [(size * torch.randn(shape, generator=generator, dtype=torch.float64)).requires_grad_() for _ in range(3)]

    def joined(tensor: Tensor) -> Tensor:
        return tensor.unflatten(0, (2, count)).transpose(1, 2).flatten(2, 3)

    def as_one(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = folded_mask.attend_apart(joined(query), joined(key), joined(value), count)
        return out.unflatten(2, (count, tokens)).transpose(1, 2).flatten(0, 1)

    def alone(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (query @ key.mT * width**-0.5).softmax(-1) @ value

    for one, other in zip(answers(as_one, tensors), answers(alone, tensors), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@given(st.integers(1, 3), st.integers(1, 400), st.integers(1, 150), st.sampled_from([24, 64, 72, 80, 120]))
def test_as_many_sequences_of_a_clip_are_computed_as_one_as_fill_a_tile(
    clips: int, sequences: int, tokens: int, width: int
) -> None:
    """How many does not depend on the clips, whose number may be another in the last micro-batch."""
    values = torch.empty(clips * sequences, tokens, 3 * width, dtype=torch.bfloat16, device="meta")
    possible = [n for n in range(1, 17) if sequences % n == 0 and n * tokens <= 128 and n <= -width % 16]
    assert folded_mask.together(values, width, sequences) == max(possible, default=1)
    assert folded_mask.together(values.float(), width, sequences) == 1


@pytest.mark.parametrize("rotate_first", [False, True])
@pytest.mark.parametrize("tokens", [1, 5, 15])
def test_a_layer_gives_each_sequence_what_it_gives_it_alone(
    tokens: int, rotate_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With norms and rotations; as on a GPU in half precision, and as on a CPU."""
    torch.manual_seed(0)
    layer = layers.SelfAttention(2 * 24, 2, qk_norm=True, rotate_first=rotate_first).double()
    x = torch.randn(2, 6, tokens, 2 * 24, dtype=torch.float64, requires_grad=True)
    angles = torch.randn(tokens, 12, dtype=torch.float64)

    def results() -> list[Tensor]:
        out = layer(x, (angles.cos(), angles.sin()))
        return [out.detach(), *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])]

    alone = results()
    counts: list[int] = []
    apart = folded_mask.attend_apart
    monkeypatch.setattr(folded_mask, "_pads", lambda values, width: width == 24)
    monkeypatch.setattr(folded_mask, "attend_apart", lambda *given: counts.append(given[-1]) or apart(*given))
    for one, other in zip(results(), alone, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)  # norms compute in float32
    assert counts == [{1: 6, 5: 6, 15: 6}[tokens]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_as_near_to_exact_attention_as_with_a_mask(dtype: torch.dtype) -> None:
    tensors = case([9, 1, 4], 72, dtype, 0)
    wide = [t.detach().double().requires_grad_() for t in tensors[:3]]
    expected = answers(exact, [*wide, tensors[3]])
    masked = answers(lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), tensors)
    for found, plain, right in zip(answers(folded_mask.fold, tensors), masked, expected, strict=True):
        off, usual = ((each.double() - right).norm() for each in (found, plain))
        assert off <= 1.5 * usual + 1e-6
        assert off < 0.02 * right.norm()


def test_a_cpu_keeps_the_mask_and_a_gpu_gets_none() -> None:
    """Golden numbers are those of a mask; calls on the meta device are those of a GPU."""
    values = tiny_recipe.least(model={"name": "stdit3-tiny", "hidden_size": 48, "num_heads": 2, "depth": 1})
    made = recipe_file.parse(values)
    masked = []
    for device in ("cpu", "meta"):
        denoiser = build.denoiser(made, torch.device(device))
        inputs = dry_run.blank(
            build.lazy_encoder(made, torch.device("meta")), bucket_table(made).buckets[0], 1, torch.device(device)
        )
        recorder = Recorder()
        with recorder.recording():
            meter.run_pass(denoiser, inputs)
        assert {call.query.shape[-1] for call in recorder.calls} == ({24} if device == "cpu" else {24, 32})
        masked.append(any(call.mask is not None for call in recorder.calls))
    assert masked == [True, False]
