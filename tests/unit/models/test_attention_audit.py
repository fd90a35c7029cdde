"""Attention kernels are compared with exact attention as a network calls them, and wrong ones are replaced."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_attention import Arguments, Results, exact, planted
from refused import refused
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import reelworks as rw
from reelworks.models.attention import attention_audit, attention_calls, torch_kernels
from reelworks.models.attention.attention_calls import ATTEND, AttentionCall, CallKind, Recorder, TensorLayout, mask_for
from reelworks.models.precision import audit
from reelworks.testing import contract
from reelworks.training.memory import meter

CPU = torch.device("cpu")


def call_of(
    clips: int = 2,
    heads: int = 3,
    queries: int = 22,
    keys: int = 22,
    width: int = 16,
    *,
    mask: str = "",
    causal: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    padding: int = 0,
    key_heads: int = 0,
) -> AttentionCall:
    """Return a call as networks make them: heads behind tokens, gradients perhaps as slices of wider rows."""

    def layout(tokens: int, heads: int, extra: int = 0) -> TensorLayout:
        row = heads * width + extra
        return TensorLayout((clips, heads, tokens, width), (tokens * row, width, row, 1), 0, dtype)

    shapes = {"keys": (clips, 1, 1, keys), "square": (clips, 1, queries, keys), "added": (clips, 1, 1, keys)}
    of_mask = None
    if mask:
        empty = torch.empty(shapes[mask], dtype=dtype if mask == "added" else torch.bool, device="meta")
        of_mask = TensorLayout.of_tensor(empty)
    of_keys = layout(keys, key_heads or heads)
    gradient = layout(queries, heads, padding)
    return AttentionCall(
        layout(queries, heads), of_keys, of_keys, of_mask, gradient, causal, enable_gqa=key_heads not in (0, heads)
    )


@given(
    st.integers(1, 3),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 150),
    st.integers(1, 150),
    st.sampled_from([8, 12, 64, 72]),
    st.sampled_from(["", "keys", "square", "added", "causal", "shared"]),
    st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    st.sampled_from([0, 8, 64]),
)
@settings(max_examples=60, deadline=None)
def test_torchs_own_kernels_are_right(clips, heads, queries, keys, width, kind, dtype, padding):
    mask, causal = (kind if kind in ("keys", "square", "added") else ""), kind == "causal"
    call = call_of(
        clips,
        heads,
        queries,
        queries if causal or mask == "square" else keys,
        width,
        mask=mask,
        causal=causal,
        dtype=dtype,
        padding=padding,
        key_heads=1 if kind == "shared" else 0,
    )
    report = attention_audit.audit([call], CPU)
    assert (report.calls, report.faults) == (1, ())
    assert report.worst < 0.03


def replaced(results: Results, index: int, change: Callable[[Tensor], Tensor]) -> Results:
    changed = list(results)
    changed[index] = change(results[index])
    return tuple(changed)


def garbage_for_one_length(a: Arguments) -> Results:
    found = exact(a)
    is_hit = a.gradient is not None and a.query.shape[-2] == 22
    return replaced(found, 0, lambda dq: dq * 1e31) if is_hit else found


def gradient_read_as_if_contiguous(a: Arguments) -> Results:
    if a.gradient is None:
        return exact(a)
    B, A, L, E = a.gradient.shape
    strides = (L * A * E, E, A * E, 1)
    return exact(
        dataclasses.replace(a, gradient=a.gradient.as_strided((B, A, L, E), strides, a.gradient.storage_offset()))
    )


def mask_ignored(a: Arguments) -> Results:
    return exact(dataclasses.replace(a, mask=None))


def nan_in_padding_rows(a: Arguments) -> Results:
    found = exact(a)
    if a.mask is None or a.gradient is not None:
        return found
    padding = (a.mask < -1e30).all(dim=-1, keepdim=True)
    return replaced(found, 0, lambda out: out.masked_fill(padding, math.nan))


def nan_gradients_with_a_mask(a: Arguments) -> Results:
    found = exact(a)
    is_hit = a.mask is not None and a.gradient is not None and a.query.shape[-2] % 128 == 64
    return replaced(found, 1, lambda dk: dk.masked_fill(dk == dk.max(), math.nan)) if is_hit else found


def keys_and_values_exchanged(a: Arguments) -> Results:
    found = exact(a)
    return found if a.gradient is None else (found[0], found[2], found[1])


def exchanged_with_a_mask(a: Arguments) -> Results:
    return exact(a) if a.mask is None else keys_and_values_exchanged(a)


def last_key_left_out(a: Arguments) -> Results:
    """The tail behind the last whole tile of 64 keys is not visited in the backward pass."""
    found, keys = exact(a), a.key.shape[-2] // 64 * 64
    if a.gradient is None or keys in (0, a.key.shape[-2]):
        return found
    return replaced(found, 2, lambda dv: torch.cat([dv[..., :keys, :], torch.zeros_like(dv[..., keys:, :])], -2))


def heads_shared_wrongly(a: Arguments) -> Results:
    """Heads of queries that share keys see those of others."""
    return exact(dataclasses.replace(a, key=a.key.flip(1))) if a.query.shape[1] != a.key.shape[1] else exact(a)


def causal_by_one_too_many(a: Arguments) -> Results:
    if not a.causal:
        return exact(a)
    bias = torch.zeros(a.query.shape[-2], a.key.shape[-2]).masked_fill(
        torch.ones(22, 22, dtype=torch.bool).triu(2), -math.inf
    )
    return exact(dataclasses.replace(a, causal=False, mask=bias))


def scale_of_another_width(a: Arguments) -> Results:
    return exact(dataclasses.replace(a, scale=a.scale / 2)) if a.query.shape[-1] == 72 else exact(a)


PLANTED = [
    (garbage_for_one_length, call_of(), "the gradient of the query"),
    (gradient_read_as_if_contiguous, call_of(padding=64), "the gradient of the query"),
    (mask_ignored, call_of(mask="keys"), "the output"),
    (nan_in_padding_rows, call_of(mask="square"), "the output"),
    (nan_gradients_with_a_mask, call_of(queries=192, keys=192, mask="added"), "the gradient of the key"),
    (keys_and_values_exchanged, call_of(), "the gradient of the key"),
    (exchanged_with_a_mask, call_of(mask="keys"), "the gradient of the key"),
    (last_key_left_out, call_of(queries=65, keys=65), "the gradient of the value"),
    (heads_shared_wrongly, call_of(heads=4, key_heads=2), "the output"),
    (causal_by_one_too_many, call_of(causal=True), "the output"),
    (scale_of_another_width, call_of(width=72), "the output"),
]


@pytest.mark.parametrize(("fault", "call", "where"), PLANTED, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_fault_is_found_and_another_kernel_takes_its_place(fault, call, where):
    right = call_of(queries=30, keys=30)
    with planted(fault):
        report = attention_audit.audit([call, right], CPU)
        if fault is not keys_and_values_exchanged:
            assert [each.call for each in report.faults] == [str(call)]
        found = report.faults[0]
        assert (found.kernel, found.instead) == ("flash", "math")
        assert where in found.problem
        assert f"torch {torch.__version__}" in str(found)
        with report.replaced():
            assert attention_audit.audit([call, right], CPU, functional.scaled_dot_product_attention).faults == ()
    assert functional.scaled_dot_product_attention is ATTEND


@pytest.mark.parametrize("compiled", [False, True])
def test_only_the_calls_of_a_fault_are_replaced_in_compiled_code_too(compiled):
    seen = []

    def fault(a: Arguments) -> Results:
        seen.append(a.query.shape[-2])
        return garbage_for_one_length(a)

    with planted(fault):
        report = attention_audit.audit([call_of()], CPU)
        seen.clear()

        def attend(x: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(x, x, x)

        with report.replaced():
            run = torch.compile(attend, backend="aot_eager", dynamic=False) if compiled else attend
            for tokens in (22, 23):
                x = torch.randn(1, 2, tokens, 16, requires_grad=True)
                torch.autograd.backward(run(x).sum())
                assert x.grad is not None
                assert x.grad.norm() < 100
    assert seen == [23, 23]


def of_torchs_layer(x: Tensor) -> Tensor:
    layer = torch.nn.MultiheadAttention(32, 2, batch_first=True)
    return layer(x, x, x, need_weights=False)[0]


def by_name(x: Tensor) -> Tensor:
    heads = x.unflatten(-1, (2, 16)).transpose(1, 2)
    return scaled_dot_product_attention(heads, heads, heads)


def of_the_namespace(x: Tensor) -> Tensor:
    heads = x.unflatten(-1, (2, 16)).transpose(1, 2)
    return functional.scaled_dot_product_attention(heads, heads, heads)


@pytest.mark.parametrize("model", [of_torchs_layer, by_name, of_the_namespace])
def test_what_replaces_kernels_reaches_each_call_that_is_audited_whoever_makes_it(model):
    computed = []

    def far_off(a: Arguments) -> Results:
        computed.append(a.gradient is None)
        return tuple(result * 3 for result in exact(a))

    x = torch.randn(2, 10, 32, requires_grad=True)
    with planted(far_off):
        report = rw.check_attention(lambda: model(x).sum().backward())
        assert (report.calls, [fault.instead for fault in report.faults]) == (1, ["math"])
        computed.clear()
        with report.replaced():
            model(x).sum().backward()
        assert computed == []
        model(x).sum().backward()
        assert computed == [True, False]
    assert scaled_dot_product_attention is ATTEND


def stale_plans() -> Callable[[Arguments], Results]:
    """Return a kernel that reads a gradient as the first one lay that came for such a query, as cuDNN's does in torch 2.11."""
    planned: dict[tuple[object, ...], tuple[int, ...]] = {}

    def compute(a: Arguments) -> Results:
        if a.gradient is None:
            return exact(a)
        strides = planned.setdefault((a.query.shape, a.query.stride()), a.gradient.stride())
        held = a.gradient.untyped_storage().nbytes() // a.gradient.itemsize
        last = sum((size - 1) * stride for size, stride in zip(a.gradient.shape, strides, strict=True))
        assert a.gradient.storage_offset() + last < held, "an illegal memory access"
        return exact(dataclasses.replace(a, gradient=a.gradient.as_strided(a.gradient.shape, strides)))

    return compute


def layers_that_go_on_differently(x: Tensor) -> Tensor:
    """Two layers that attend alike; what the second returns is a part of wider rows, as in FLUX."""
    for is_wide in (False, True):
        attended = by_name(x).transpose(1, 2).flatten(2)
        x = (torch.cat([attended, x], dim=-1) @ torch.ones(64, 32)).tanh() if is_wide else attended
    return x


def gradient_of(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    (found,) = torch.autograd.grad((model(x) * torch.linspace(-1, 1, x.numel()).view_as(x)).sum(), x)
    return found


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch's own, while it compiles
def test_a_plan_that_is_kept_reads_each_gradient_rightly_while_kernels_are_replaced(monkeypatch):
    """A gradient's layout comes from its shape alone, so that no plan was made for another one."""
    x = torch.randn(2, 10, 32, requires_grad=True)
    expected = gradient_of(layers_that_go_on_differently, x)
    with planted(stale_plans()), pytest.raises(AssertionError, match="illegal memory access"):
        gradient_of(layers_that_go_on_differently, x)
    monkeypatch.setattr(attention_calls, "_PLANNING", "cpu")
    with planted(stale_plans()):
        report = rw.check_attention(lambda: gradient_of(layers_that_go_on_differently, x))
        assert (report.calls, report.faults) == (1, ())
        with report.replaced():
            torch.testing.assert_close(gradient_of(layers_that_go_on_differently, x), expected, rtol=1e-4, atol=1e-3)
    compiled = torch.compile(layers_that_go_on_differently, backend="aot_eager", fullgraph=True)
    with report.replaced():
        torch.testing.assert_close(gradient_of(compiled, x), expected, rtol=1e-4, atol=1e-3)


def test_a_kernel_that_crashes_the_gpu_is_told_since_nothing_can_follow(monkeypatch):
    def crash(*given: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")

    monkeypatch.setattr(attention_audit, "_wait", crash)
    with refused("attention-is-wrong", "model.attention", says="crashed the GPU .CUDA error: an illegal memory access"):
        attention_audit.audit([call_of()], CPU)


def test_compiled_code_of_any_length_stays_one_graph_where_nothing_is_replaced(monkeypatch):
    """And gradients of one clip each, as torch's functional transforms make them, are those without."""
    monkeypatch.setattr(attention_calls, "_PLANNING", "cpu")
    graphs = []
    torch._dynamo.reset()
    compiled = torch.compile(by_name, backend=lambda traced, _: graphs.append(1) or traced.forward, dynamic=True)
    clips = torch.randn(3, 2, 7, 32)
    each = torch.func.vmap(torch.func.grad(lambda x: by_name(x).square().sum()))
    with sdpa_kernel(SDPBackend.MATH):
        expected = each(clips)
    with attention_audit.ReplacedKernels().replaced():
        for length in (10, 11, 12, 30, 31):
            compiled(torch.randn(2, length, 32))
        with sdpa_kernel(SDPBackend.MATH):
            torch.testing.assert_close(each(clips), expected)
    assert len(graphs) == 1


def test_attention_of_any_dtype_is_compared_and_of_no_tokens_is_passed_over():
    def step() -> None:
        for tokens in (0, 5):
            x = torch.randn(1, 2, tokens, 8, dtype=torch.float64, requires_grad=True)
            functional.scaled_dot_product_attention(x, x, x).sum().backward()

    report = rw.check_attention(step)
    assert (report.calls, report.faults, report.left_out) == (1, (), 0)


def slow(a: Arguments) -> Results:
    time.sleep(0.02)
    return exact(a)


def slow_at_first(planned: set[tuple[int, ...]]) -> Callable[[Arguments], Results]:
    """Return a kernel that plans each shape for long, and computes it as any other."""

    def compute(a: Arguments) -> Results:
        if a.query.shape not in planned:
            planned.add(a.query.shape)
            time.sleep(0.3)
        return exact(a)

    return compute


def test_a_kernel_that_is_quicker_takes_the_place_of_the_chosen_one_for_calls_of_its_kind():
    calls = [call_of(), call_of(clips=1), call_of(queries=30, keys=30)]
    with planted(lambda a: slow(a) if a.query.shape[-2] == 22 else exact(a)):
        report = attention_audit.audit(calls, CPU, times=True)
        assert report.faults == ()
        (quicker,) = [each for each in report.quicker if each.kind == calls[0].kind]
        assert (quicker.kernel, quicker.instead) == ("flash", "math")
        assert quicker.times > 2
        seen: list[str] = []
        with report.replaced():
            for call in calls[:2]:
                query = call.query.drawn(CPU, torch.Generator()).requires_grad_()
                seen.append(torch_kernels.kernel_of(functional.scaled_dot_product_attention(query, query, query)))
        assert seen == ["math", "math"]
    assert any("math kernel takes the place of flash" in line for line in report.quicker_lines())


def test_a_kernel_is_known_through_views_and_casts_of_its_result():
    query = torch.randn(1, 2, 4, 8, requires_grad=True)
    out = functional.scaled_dot_product_attention(query, query, query)
    assert torch_kernels.kernel_of(out) == torch_kernels.kernel_of(out.transpose(1, 2).double()[:1]) != "math"


def test_without_times_no_other_kernel_is_looked_for():
    with planted(slow):
        report = attention_audit.audit([call_of()], CPU)
    assert (report.quicker, report.planning_seconds) == ((), 0.0)


def test_what_planning_takes_is_told(monkeypatch):
    monkeypatch.setattr(attention_audit, "_LEAST_GAIN", math.inf)  # no other kernel is chosen
    with planted(slow_at_first(set())):
        report = attention_audit.audit([call_of(), call_of(queries=30, keys=30)], CPU, times=True)
    assert 0.6 <= report.planning_seconds < 2


@given(st.floats(1e-4, 1), st.floats(1e-4, 1), st.floats(0, 60), st.floats(0, 60))
def test_a_kernel_is_chosen_if_a_run_gains_by_it(former, other, former_plan, other_plan):
    def seconds_of_run(total: attention_audit._Total) -> float:
        return total.planning + attention_audit._PASSES * total.seconds

    old = attention_audit._Total("flash", former, former_plan)
    new = attention_audit._Total("cuDNN", other, other_plan)
    if new.is_worth(old):
        assert seconds_of_run(new) < seconds_of_run(old)
        assert other < former / 1.09
        assert not old.is_worth(new)


def test_a_kernel_that_raises_is_a_fault_and_none_that_is_right_is_told():
    def broken(*args: Tensor, **more: object) -> Tensor:
        raise RuntimeError("no plan for this shape")

    (found,) = attention_audit.audit([call_of()], CPU, broken).faults
    assert "no plan for this shape" in found.problem
    assert found.instead is None


def test_a_call_that_would_take_long_on_a_cpu_is_left_out():
    report = attention_audit.audit([call_of(queries=40_000, keys=40_000)], CPU)
    assert (report.calls, report.left_out) == (0, 1)


@pytest.mark.parametrize(
    ("name", "checkpointing"),
    [
        ("stdit3-tiny", True),
        ("qwen-image-tiny", False),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in itertools.product(("flux-tiny", "ltx-2-sound-tiny"), (False, True))
        ),
    ],
)
@pytest.mark.quick_cases(1)
def test_what_is_recorded_on_the_meta_device_is_what_a_pass_calls(name, checkpointing):
    denoiser = contract.build(name, compute=torch.bfloat16, gradient_checkpointing=checkpointing)
    inputs = contract.example(contract.shapes(name)[-1], name)
    recorder = Recorder()
    with recorder.recording():
        contract.answer(denoiser, inputs)
    real, shadow = recorder.calls, audit.shadow_of(denoiser, None)
    assert real
    assert all(call.gradient is not None for call in real)
    recorder = Recorder()
    with recorder.recording():
        meter.run_pass(shadow, audit.on_meta(inputs))
    assert set(recorder.calls) == set(real)


@pytest.mark.parametrize(
    "name",
    [
        "ernie-image-tiny",
        "flux3-tiny",
        "hidream-i1-tiny",
        "ideogram-4-tiny",
        "kandinsky5-tiny",
        "lumina-image-2.0-tiny",
    ],
)
def test_networks_whose_modules_in_diffusers_need_numbers_run_without_them(name):
    """Estimates of memory and time run each network on the meta device."""
    inputs = audit.on_meta(contract.example(contract.shapes(name)[0], name))
    meter.run_pass(audit.shadow_of(contract.build(name), None), inputs)


def test_gradients_of_flux_are_parts_of_wider_rows():
    """The layout in which a kernel was wrong on an H100, and which attention alone never has."""
    denoiser = contract.build("flux-tiny", compute=torch.bfloat16)
    report = rw.check_attention(
        lambda: contract.answer(denoiser, contract.example(contract.shapes("flux-tiny")[-1], "flux-tiny"))
    )
    assert (report.calls, report.faults) == (2, ())
    with planted(gradient_read_as_if_contiguous):
        report = rw.check_attention(
            lambda: contract.answer(denoiser, contract.example(contract.shapes("flux-tiny")[-1], "flux-tiny"))
        )
    (fault,) = report.faults
    assert fault.instead == "math"


def test_a_pass_without_attention_is_told():
    with refused("no-attention", "step", says="without torch.compile"):
        rw.check_attention(lambda: None)


@pytest.mark.parametrize(
    ("shapes", "more"),
    [
        ([(5, 8)], {}),
        ([(3, 5, 8)], {}),
        ([(2, 2, 3, 5, 8)], {}),
        ([(2, 2, 5, 8), (1, 2, 5, 8)], {}),
        ([(2, 2, 5, 8), (2, 5, 8)], {}),
        ([(5, 8), (2, 2, 5, 8)], {}),
        ([(2, 4, 5, 8), (1, 2, 5, 8)], {"enable_gqa": True}),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.quick_cases(8)
def test_calls_of_any_shape_that_torch_takes_are_compared(shapes, more, device):
    """With and without clips and heads, and with fewer clips of keys than of queries."""

    def step():
        query, key = (torch.randn(shape, device=device, requires_grad=True) for shape in (shapes[0], shapes[-1]))
        functional.scaled_dot_product_attention(query, key, key, **more).sum().backward()

    report = rw.check_attention(step, device="cpu")
    assert (report.calls, report.left_out, report.faults) == (1, 0, ())
    if device == "meta":
        for given in (None, "meta"):
            with refused("attention-on-meta", "device"):
                rw.check_attention(step, device=given)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_calls_of_nested_tensors_are_refused(layout):
    with refused("attention-nested", "step"):
        rw.check_attention(lambda: attend_nested(layout))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_calls_of_nested_tensors_go_on_beside_those_that_are_replaced(layout):
    with torch_kernels.replacing({CallKind(4, 4, 8, 8, False, False): ["math"]}):
        assert attend_nested(layout).is_nested


def attend_nested(layout):
    if layout == torch.jagged:
        clips = [torch.randn(4, 2, 8), torch.randn(7, 2, 8)]
        query = torch.nested.nested_tensor(clips, layout=layout).transpose(1, 2)
    else:
        query = torch.nested.nested_tensor([torch.randn(2, 4, 8), torch.randn(2, 7, 8)], layout=layout)
    return functional.scaled_dot_product_attention(query, query, query)


@given(st.lists(st.integers(1, 5), min_size=2, max_size=4), st.randoms(use_true_random=False), st.integers(0, 7))
@settings(max_examples=30, deadline=None)
def test_a_drawn_tensor_has_its_layout(shape, random, offset):
    dims = list(range(len(shape)))
    random.shuffle(dims)
    whole = torch.empty(offset + 2 * math.prod(shape))[offset : offset + math.prod(shape)]
    view = whole.reshape([shape[dim] for dim in dims]).permute([dims.index(dim) for dim in range(len(shape))])
    if random.random() < 0.5:
        view = view.narrow(0, 0, 1).expand(shape)
    layout = TensorLayout.of_tensor(view)
    drawn = layout.drawn(CPU, torch.Generator())
    assert TensorLayout.of_tensor(drawn) == layout
    assert drawn.isfinite().all()
    assert (drawn != 0).all()


def test_masks_have_padding_behind_keys_and_rows():
    keys = mask_for(TensorLayout((3, 1, 1, 12), (12, 12, 12, 1), 0, torch.bool), CPU)
    assert keys.sum(-1).flatten().tolist() == [10, 8, 6]
    square = mask_for(TensorLayout((2, 1, 12, 12), (144, 144, 12, 1), 0, torch.bool), CPU)
    assert square.any(-1).sum(-1).flatten().tolist() == [10, 8]
    expanded = mask_for(TensorLayout((2, 4, 6, 6), (36, 0, 6, 1), 0, torch.bool), CPU)
    assert (expanded == expanded[:, :1]).all()
    added = mask_for(TensorLayout((1, 1, 1, 12), (12, 12, 12, 1), 0, torch.bfloat16), CPU)
    assert (added == 0).sum() == 10
    assert mask_for(TensorLayout((7, 9), (9, 1), 0, torch.bool), CPU).any(-1).all()


def test_planted_kernels_without_a_fault_are_right():
    """What is found above is the fault, and not the way in which it was planted."""
    with planted(exact):
        assert attention_audit.audit([call for _, call, _ in PLANTED], CPU).faults == ()


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("no"), RuntimeError("MPS backend out of memory (allocated …)")]
)
def test_a_call_that_memory_does_not_suffice_for_is_left_out(error: RuntimeError) -> None:
    def attend(*_: object, **__: object) -> Tensor:
        raise error

    report = attention_audit.audit([call_of()], CPU, attend)
    assert (report.left_out, report.calls, report.faults) == (1, 0, ())
