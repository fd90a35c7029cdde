"""Frozen bases: codes are the nearest ones, products keep nothing wide, and a file becomes what it says."""

from __future__ import annotations

import json
import math

import bitsandbytes.functional as bits
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refused import refused
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from reelworks.core import units
from reelworks.models import base_model, factory
from reelworks.models.adapters import frozen, inject
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.adapters.frozen import FORMATS, Quantized, QuantizedLinear, dequantize, quantize
from reelworks.models.config import ModelConfig
from reelworks.models.precision import audit
from reelworks.models.storage import nf4_files, scaled_weights, stored_weights
from reelworks.testing import contract

F32, BF16 = torch.float32, torch.bfloat16
every_format = pytest.mark.parametrize("format", FORMATS)
# As QLoRA's authors published them.
NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip


def test_the_levels_of_nf4_are_the_published_ones():
    """Quantiles of a normal distribution, made here, are the numbers that others store."""
    assert torch.allclose(nf4_files.levels(), torch.tensor(NF4), atol=1e-6, rtol=0)


@every_format
@given(out=st.integers(1, 9), width=st.integers(1, 70), exponent=st.integers(-30, 30), seed=st.integers(0, 2**32 - 1))
def test_codes_are_the_nearest(format, out, width, exponent, seed):
    """Of any shape and size of numbers, each comes back as the number nearest to it that its scale allows."""
    weight = torch.randn(out, width, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    weight[0, 0] = 0
    found = quantize(weight, format)
    back = dequantize(found, format, (out, width), F32)
    by_block = found.scale.expand(-1, 64).flatten()[: out * width]
    rows = by_block.view(out, width) if format == "nf4" else found.scale.expand(out, width)
    # Scales are rounded to bfloat16, so that the largest number of a row may lie beyond the last code.
    beyond = weight.abs() / 256
    half_step = {"int8": 0.5 * rows, "float8": weight.abs() / 16 + 2**-10 * rows, "nf4": 0.16 * rows}[format]
    assert back[0, 0] == 0
    assert ((back - weight).abs() <= (half_step + beyond) * 1.001).all()
    again = quantize(back, format)
    if format != "nf4":  # whose largest code may be another one, at another scale
        assert torch.equal(dequantize(again, format, (out, width), F32), back)


@every_format
def test_rounding_to_the_compute_dtype_happens_once(format):
    """A weight widened to bfloat16 is the exact one, rounded; nf4's levels are rounded beforehand too."""
    weight = torch.randn(16, 96, generator=torch.Generator().manual_seed(0))
    found = quantize(weight, format)
    exact, lowered = (dequantize(found, format, (16, 96), dtype) for dtype in (F32, BF16))
    if format == "nf4":
        assert torch.allclose(lowered.float(), exact, rtol=2**-7)
    else:
        assert torch.equal(lowered, exact.bfloat16())


def test_zeros_stay_zeros():
    """A row without a scale is no division by zero."""
    for format in FORMATS:
        assert not dequantize(quantize(torch.zeros(3, 5), format), format, (3, 5), F32).any()


@every_format
@pytest.mark.parametrize("autocast", [False, True])
def test_a_product_is_that_of_the_widened_weight_and_keeps_nothing(format, autocast):
    """Result and gradient are a plain layer's; for the backward pass no weight and no input is kept."""
    torch.manual_seed(0)
    plain = nn.Linear(40, 24).requires_grad_(False)
    layer = QuantizedLinear(plain, format)
    x = torch.randn(2, 3, 40, requires_grad=True)
    dtype = BF16 if autocast else F32
    with torch.autocast("cpu", BF16, enabled=autocast), contract.counted() as found:
        out = layer(x)
    assert (out.dtype, found.bytes) == (dtype, 0)
    weight = layer.dequantize(dtype)
    wanted = functional.linear(x.to(dtype), weight, plain.bias.to(dtype))
    assert torch.equal(out, wanted)
    one, other = (torch.autograd.grad(y.float().square().sum(), x)[0] for y in (out, wanted))
    assert torch.equal(one, other)
    assert torch.equal(weight, dequantize(Quantized(layer.codes, layer.scale), format, (24, 40), dtype))


@pytest.mark.parametrize("name", contract.CLASSES)
@pytest.mark.quick_cases(12)
def test_linear_layers_of_blocks_alone_are_quantized(name):
    """All of them, and no embedding, norm, or layer before or behind the blocks."""
    plain, found = contract.build(name), contract.with_lora(name, "int8", F32)
    inside = {id(child) for block in plain.sharding().blocks for child in block.modules()}
    wanted = {n for n, m in plain.module.named_modules() if isinstance(m, nn.Linear) and id(m) in inside}
    quantized = {n for n, m in found.module.named_modules() if isinstance(m, QuantizedLinear)}
    assert {n.removesuffix(".base_layer") for n in quantized} == wanted != set()


def test_rounding_says_how_far_it_is(caplog, monkeypatch):
    monkeypatch.setattr(frozen, "_SECONDS_BETWEEN_LINES", 0.0)
    with caplog.at_level("INFO", logger="reelworks"):
        contract.with_lora(contract.FAMILIES[0], "int8", F32)
    first, *further = [record.getMessage() for record in caplog.records if "layers" in record.getMessage()]
    count = int(first.split()[1])
    assert first == f"rounding {count} layers to int8"
    assert further == [f"{done} of {count} layers {units.verb(done, 'are')} rounded" for done in range(1, count + 1)]


@pytest.mark.parametrize("base", [None, "float32", *FORMATS])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_a_base_from_a_file_is_the_one_that_was_written(tmp_path, base, dtype):
    """Read tensor by tensor, in any base, a network answers as one that holds the same numbers."""
    written = contract.build("wan-tiny")
    state = {name: value.to(dtype) for name, value in written.module.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    written.module.load_state_dict(state)
    read = factory.build_denoiser(
        ModelConfig(name="wan-tiny", weights=str(tmp_path / "model.safetensors")),
        autoencoder=contract.AUTOENCODER,
        text=contract.TEXT,
        device="cpu",
        seed=0,
        compute=BF16,
        lora=LoraConfig(rank=2, base=base),
    )
    for name, value in written.module.named_parameters():
        layer, _, part = name.rpartition(".")
        module = read.module.get_submodule(layer) if layer else read.module
        module = getattr(module, "base_layer", module)
        found = getattr(module, part)
        if isinstance(module, QuantizedLinear) and part == "weight":
            value = dequantize(quantize(value, base), base, value.shape, F32)
        assert torch.equal(found.float(), value.to(found.dtype).float()), name
        # Products alone are lowered.
        assert found.dtype == F32 or isinstance(module, nn.Linear | nn.Conv3d)


@pytest.mark.parametrize("base", ["bfloat16", "nf4"])
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("lowered", ["blocks.0.norm2.weight", "blocks.0.attn1.norm_q.weight", "scale_shift_table"])
@pytest.mark.quick_cases(7)
def test_what_must_stay_wide_beside_a_narrow_base_is_told(base, sharded, lowered):
    """Only weights of products may have their dtype: norms and tables are stored in float32."""
    denoiser = contract.build("wan-tiny", compute=BF16, lora=LoraConfig(rank=2, base=base))
    units = denoiser.sharding().units
    assert list(audit.faults(denoiser, [], sharded=sharded, units=units)) == []
    parameter = denoiser.module.get_parameter(lowered)
    parameter.data = parameter.data.bfloat16()
    (fault,) = audit.faults(denoiser, [], sharded=sharded, units=units)
    assert (fault.field, fault.found, fault.declared) == (lowered, BF16, F32)


def test_a_lora_begins_alike_on_every_base():
    """What is drawn does not depend on how the base is stored."""
    states = [
        inject.weights(contract.build("wan-tiny", compute=BF16, lora=LoraConfig(rank=2, base=base)).module)
        for base in ("float32", "bfloat16", "nf4")
    ]
    assert all(torch.equal(value, other[name]) for other in states for name, value in states[0].items())
    assert all(value.dtype == F32 for state in states for value in state.values())


@pytest.mark.parametrize("base", ["bfloat16", "nf4"])
def test_dora_takes_lengths_of_the_stored_base(base):
    """DoRA too begins as no change, to the last bit, and is reached by gradients in all its parts."""
    inputs = contract.example(contract.shapes("wan-tiny")[-1], "wan-tiny")
    denoiser = contract.build("wan-tiny", compute=BF16, lora=LoraConfig(rank=2, base=base))
    dora = contract.build("wan-tiny", compute=BF16, lora=LoraConfig(rank=2, base=base, dora=True))
    for name, parameter in [*denoiser.module.named_parameters(), *dora.module.named_parameters()]:
        if "lora_B" in name:
            parameter.data.zero_()  # as before the first step
    one, other = contract.answer(denoiser, inputs)[""], contract.answer(dora, inputs)[""]
    assert torch.equal(one, other)
    trained = contract.with_lora("wan-tiny", base, BF16, dora=True)
    gradients = contract.answer(trained, inputs)
    lengths = [value for name, value in gradients.items() if "magnitude" in name]
    assert lengths
    assert all(value.any() for value in lengths)


SCALES = {"one": lambda rows: rows.max().reshape(1), "rows": lambda rows: rows, "none": None}


def fp8_file(path, name, scale_of):
    """A file of fp8 weights with scales as ComfyUI stores them, and the network of its values."""
    denoiser, state = contract.build(name), {}
    for key, value in denoiser.module.state_dict().items():
        if value.ndim == 2 and "blocks" in key:
            scale = torch.ones(()) if scale_of is None else scale_of(value.abs().amax(dim=1).clamp(min=1e-6) / 448)
            rows = scale[:, None] if scale.ndim else scale
            state[key] = (value / rows).to(torch.float8_e4m3fn)
            if scale_of is not None:
                state[key.replace(".weight", ".weight_scale")] = scale
            value.copy_(state[key].float() * rows)
        else:
            state[key] = value.clone()
    save_file(state, path)
    return denoiser, state


@pytest.mark.parametrize("scales", SCALES)
def test_fp8_files_stay_as_they_are_in_an_fp8_base(tmp_path, scales):
    """Codes and scales are those of the file, in its memory; output and gradients those of the values they stand for."""
    reference, stored = fp8_file(tmp_path / "model.safetensors", "wan-tiny", SCALES[scales])
    denoiser = from_file(tmp_path / "model.safetensors", LoraConfig(rank=2, base="float8"))
    layers = {n: m for n, m in denoiser.module.named_modules() if isinstance(m, QuantizedLinear)}
    assert layers
    for name, layer in layers.items():
        key = f"{name.removesuffix('.base_layer')}.weight"
        assert torch.equal(layer.codes.view(torch.uint8), stored[key].view(torch.uint8)), name
    inject.inject(reference, LoraConfig(rank=2), seed=0)
    inputs = contract.example(contract.shapes("wan-tiny")[-1], "wan-tiny")
    for one in (reference, denoiser):
        for key, value in inject.weights(one.module).items():
            value.copy_(torch.randn(value.shape, generator=torch.Generator().manual_seed(len(key))) * 0.1)
    wanted, found = (contract.answer(one, inputs) for one in (reference, denoiser))
    assert found.keys() == wanted.keys()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scales", SCALES)
def test_an_fp8_file_is_one_base_whatever_its_storage(tmp_path, scales):
    """Its digest is that of its values, so that a LoRA may go on over another `lora.base`."""
    reference, _ = fp8_file(tmp_path / "model.safetensors", "wan-tiny", SCALES[scales])
    for base in ("float32", "float8", "nf4"):
        denoiser = from_file(tmp_path / "model.safetensors", LoraConfig(rank=2, base=base))
        assert denoiser.base.digest == base_model.digest(reference.module.state_dict())
    wide = from_file(tmp_path / "model.safetensors", LoraConfig(rank=2, base="float32")).module.state_dict()
    for key, value in reference.module.state_dict().items():
        layer, _, part = key.rpartition(".")
        assert torch.equal(wide.get(key, wide.get(f"{layer}.base_layer.{part}")), value)


def test_scales_follow_the_rows_of_a_layer_that_is_split(tmp_path):
    """One layer of a release for query, key and value, with a scale for each row, becomes three with theirs."""
    state = {"qkv.weight": torch.randn(12, 8).to(torch.float8_e4m3fn), "qkv.weight_scale": torch.rand(12) + 0.5}
    with torch.device("meta"):
        module = nn.ModuleDict({name: nn.Linear(8, 4, bias=False) for name in "qkv"})

    def split(state):
        return {f"{n}.weight": part for n, part in zip("qkv", state["qkv.weight"].chunk(3), strict=True)}

    values = scaled_weights.read_quantized(state)
    assert values["qkv.weight"].is_meta
    codes, stored = stored_weights.match(values, split)
    module.load_state_dict(codes, assign=True)
    stored_weights.attach(module, stored)
    found = torch.cat([stored_weights.value(module[name].weight) for name in "qkv"])
    assert torch.equal(found, state["qkv.weight"].float() * state["qkv.weight_scale"][:, None])


def int8_file(path, name, group, said=None, header=False):
    """A file of ComfyUI's int8, with inputs rotated in groups where these divide them, and the network of its values."""
    denoiser, state, layers = contract.build(name), {}, {}
    for key, value in denoiser.module.state_dict().items():
        layer = key.removesuffix(".weight")
        state[key] = value.clone()
        if value.ndim == 2 and "blocks" in key and not (group and value.shape[1] % group):
            rotation = torch.block_diag(*[reference_hadamard(group)] * (value.shape[1] // group)) if group else None
            rotated = value.double() if rotation is None else value.double() @ rotation.T
            scale = rotated.abs().amax(dim=1, keepdim=True).clamp(min=1e-9) / 127
            codes = (rotated / scale).round()
            state[key], state[f"{layer}.weight_scale"] = codes.to(torch.int8), scale.float()
            layers[layer] = said or {
                "format": "int8_tensorwise",
                **({"convrot": True, "convrot_groupsize": group} if group else {}),
            }
            exact = codes * state[f"{layer}.weight_scale"].double()
            value.copy_(exact if rotation is None else exact @ rotation)
    if not header:
        state |= {
            f"{layer}.comfy_quant": torch.tensor([*json.dumps(one).encode()], dtype=torch.uint8)
            for layer, one in layers.items()
        }
    save_file(state, path, {"_quantization_metadata": json.dumps({"layers": layers})} if header else None)
    return denoiser


def reference_hadamard(size):
    """Sylvester's construction from the regular matrix of four, in float64."""
    four = torch.tensor([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]], dtype=torch.float64) / 2
    matrix = four
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([sign * 2 * matrix for sign in row], dim=1) for row in four]) / 2
    return matrix


@pytest.mark.parametrize("size", [4, 16, 64, 256])
def test_a_hadamard_matrix_undoes_itself(size):
    """Regular: all rows have the same sum, in which it differs from the one of halves."""
    matrix = scaled_weights.hadamard(size)
    assert torch.equal(matrix, reference_hadamard(size).float())
    assert torch.equal(matrix @ matrix, torch.eye(size))
    assert torch.equal(matrix.sum(dim=0), torch.ones(size))


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize(("base", "group"), [("float32", 0), ("float32", 4), ("float32", 16), ("int8", 0), ("int8", 4)])
@pytest.mark.quick_cases(5)
def test_int8_of_comfyui_is_read_in_its_basis(tmp_path, base, group, header):
    """In wide numbers, and in the codes of the file."""
    reference = int8_file(tmp_path / "model.safetensors", "wan-tiny", group, header=header)
    denoiser = from_file(tmp_path / "model.safetensors", LoraConfig(rank=2, base=base))
    for name, value in reference.module.state_dict().items():
        layer, _, part = name.rpartition(".")
        found = denoiser.module.get_submodule(layer)
        found = getattr(getattr(found, "base_layer", found), part) if layer else getattr(denoiser.module, part)
        torch.testing.assert_close(found.detach(), value, rtol=0, atol=2e-6 * float(value.abs().max() + 1e-9))
    if base == "int8":
        layers = [m for m in denoiser.module.modules() if isinstance(m, QuantizedLinear)]
        assert {0 if layer.rotation is None else len(layer.rotation) for layer in layers} == {group}
    inject.inject(reference, LoraConfig(rank=2), seed=0)
    inputs = contract.example(contract.shapes("wan-tiny")[-1], "wan-tiny")
    for one in (reference, denoiser):
        for key, value in inject.weights(one.module).items():
            value.copy_(torch.randn(value.shape, generator=torch.Generator().manual_seed(len(key))) * 0.1)
    torch.testing.assert_close(
        contract.answer(denoiser, inputs), contract.answer(reference, inputs), rtol=1e-4, atol=1e-5
    )


def test_a_rotation_that_a_marker_tells_among_its_params_is_undone(tmp_path):
    """As one that stands beside them."""
    said = {"format": "int8_tensorwise", "params": {"convrot": True, "convrot_groupsize": 4}}
    reference = int8_file(tmp_path / "model.safetensors", "wan-tiny", 4, said)
    found = from_file(tmp_path / "model.safetensors", LoraConfig(rank=2, base="float32")).module.state_dict()
    for key, value in reference.module.state_dict().items():
        layer, _, part = key.rpartition(".")
        read = found.get(key, found.get(f"{layer}.base_layer.{part}"))
        torch.testing.assert_close(read, value, rtol=0, atol=2e-6 * float(value.abs().max() + 1e-9))


@pytest.mark.parametrize("group", [0, 4])
def test_int8_products_take_the_codes_of_a_file_in_its_basis(tmp_path, group):
    reference = int8_file(tmp_path / "model.safetensors", "wan-tiny", group)
    denoiser = from_file(tmp_path / "model.safetensors", LoraConfig(rank=2, base="int8", int8_products=True))
    plain = from_file(tmp_path / "model.safetensors", LoraConfig(rank=2, base="int8"))
    layers = [m for m in denoiser.module.modules() if isinstance(m, QuantizedLinear)]
    others = [m for m in plain.module.modules() if isinstance(m, QuantizedLinear)]
    assert all(torch.equal(a.codes, b.codes) and a.int8_products for a, b in zip(layers, others, strict=True))
    inputs = contract.example(contract.shapes("wan-tiny")[-1], "wan-tiny")
    wanted, found = reference.predict(inputs), denoiser.predict(inputs)
    assert not torch.equal(plain.predict(inputs), found)
    assert (found - wanted).norm() < 0.03 * wanted.norm()


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ({"format": "nvfp4"}, "format nvfp4"),
        ({"format": "asym_w4a8_int8", "group_size": 16}, "format asym_w4a8_int8"),
        ({"format": "int8_blockwise"}, "format int8_blockwise"),
        ({"format": "int8_tensorwise", "smoothing": True}, "smoothing"),
        ({"format": "int8_tensorwise", "params": {"zero_point": 3}}, "zero_point"),
        ({"format": "float8_e4m3fn"}, "int8 where its marker says"),
        ({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 8}, "no power of 4"),
        ({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 1024}, "no multiple"),
        ({"convrot": True}, "cannot be read"),
        ({"format": ["int8_tensorwise"]}, r"format \['int8_tensorwise'\]"),
        ({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": float("inf")}, "cannot be read"),
        (["int8_tensorwise"], "cannot be read"),
    ],
)
def test_what_a_marker_says_is_known_or_refused(tmp_path, said, problem):
    int8_file(tmp_path / "model.safetensors", "wan-tiny", 0, said)
    with refused("weights-quantised", says=problem):
        from_file(tmp_path / "model.safetensors", LoraConfig(rank=2, base="float32"))


@pytest.mark.parametrize("shape", [(3, 3), (25,), (0,), (24, 1, 1), (2, 24)])
def test_scales_that_do_not_fit_are_told(tmp_path, shape):
    """Such as those of blocks, which would scale other values than were meant, or end in an error of torch."""
    state = {key: value.clone() for key, value in contract.build("wan-tiny").module.state_dict().items()}
    name = "blocks.0.attn1.to_q.weight"
    state |= {name: state[name].to(torch.float8_e4m3fn), name.replace("weight", "weight_scale"): torch.ones(shape)}
    save_file(state, tmp_path / "model.safetensors")
    for base in ("float32", "float8"):
        with refused("weights-quantised", "model.weights", says="with scales of") as told:
            from_file(tmp_path / "model.safetensors", LoraConfig(rank=2, base=base))
        assert told.value.value == str(tmp_path / "model.safetensors")


def test_two_scales_of_one_weight_are_refused():
    state = {"a.weight": torch.ones(6, 2).to(torch.float8_e4m3fn), "a.weight_scale": torch.ones(())}
    with refused("weights-quantised", "model.weights", says="a.weight has two scales"):
        scaled_weights.read_quantized(state | {"a.scale_weight": torch.ones(())})


@pytest.mark.parametrize("base", ["float32", "float8"])
@pytest.mark.parametrize(
    ("dtype", "code", "scale"),
    [
        (torch.float8_e4m3fn, 0x7E, math.nan), (torch.float8_e4m3fn, 0x7E, math.inf), (torch.float8_e4m3fn, 0x7F, None),
        (torch.float8_e4m3fn, 0xFF, None), (torch.float8_e5m2, 0x7C, None), (torch.float8_e5m2, 0xFD, None),
    ],
)  # fmt: skip
@pytest.mark.quick_cases(4)
def test_codes_and_scales_that_are_not_finite_are_refused(tmp_path, dtype, code, scale, base):
    name, state = "blocks.0.attn1.to_q.weight", dict(contract.build("wan-tiny").module.state_dict())
    codes = state[name].to(dtype).view(torch.uint8)
    codes[3, 4] = code
    state[name] = codes.view(dtype)
    if scale is not None:
        state[name.replace("weight", "weight_scale")] = torch.ones(len(codes)).index_fill(0, torch.tensor([3]), scale)
    save_file(state, tmp_path / "model.safetensors")
    with refused("weights-not-finite", "model.weights", says=f"1 of its [0-9]+ tensors has .*: {name}") as told:
        from_file(tmp_path / "model.safetensors", LoraConfig(rank=2, base=base))
    assert told.value.value == str(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    "beside",
    [
        "{}.weight_scale_inv", "{}.weight_scale_2", "{}.weight.scale", "{}.weight.absmax", "{}.SCB", "{}.weight_zero_point", "{}.smooth",
        "other.weight_scale", "model.{}.scale_weight", "model.{}.comfy_quant",
    ],
)  # fmt: skip
def test_what_a_weight_in_8_bits_is_scaled_by_is_known_or_refused(beside):
    """Mappings of diffusers drop what they do not know, and the codes would be taken for the weights."""
    layer = "double_blocks.0.img_attn.qkv"
    marker = torch.tensor([*b'{"format": "float8_e4m3fn"}'], dtype=torch.uint8)
    state = {f"{layer}.weight": torch.ones(6, 2).to(torch.float8_e4m3fn), f"{layer}.bias": torch.ones(6)}
    assert scaled_weights.read_quantized(state | {f"{layer}.weight_scale": torch.ones(())}).keys() == state.keys()
    with refused("weights-quantised", "model.weights", says="beside weights in 8 bits"):
        scaled_weights.read_quantized(
            state | {beside.format(layer): marker if beside.endswith("quant") else torch.ones(())}
        )


@pytest.mark.parametrize(
    "said", [b"{", b"[1]", b"{}", b'{"quant_type": "nf4", "blocksize": 64, "shape": 5}', b"[" * 100_000]
)
def test_nf4_that_is_not_understood_is_told(tmp_path, said):
    state = {key: value.clone() for key, value in contract.build("wan-tiny").module.state_dict().items()}
    name = "blocks.0.attn1.to_q.weight"
    state[f"{name}.quant_state.bitsandbytes__nf4"] = torch.tensor([*said], dtype=torch.uint8)
    state |= {name: torch.zeros(state[name].numel() // 2, 1, dtype=torch.uint8), f"{name}.absmax": torch.ones(9)}
    save_file(state, tmp_path / "model.safetensors")
    with refused("weights-quantised", "model.weights", says="does not fit its weight"):
        from_file(tmp_path / "model.safetensors", LoraConfig(rank=2, base="nf4"))


CODES = [torch.int8, torch.uint8, torch.int32, torch.bool]
if hasattr(torch, "float4_e2m1fn_x2"):
    CODES.append(torch.float4_e2m1fn_x2)


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("with_scale", [True, False])
def test_codes_without_a_marker_are_refused(tmp_path, dtype, with_scale):
    state = contract.build("wan-tiny").module.state_dict()
    name = next(key for key, value in state.items() if value.ndim == 2 and "blocks" in key)
    ones = torch.ones(state[name].shape, dtype=torch.uint8)
    codes = ones.view(dtype) if "float4" in str(dtype) else ones.to(dtype)
    state = {key: value.clone() for key, value in state.items()} | {name: codes}
    if with_scale:
        state[name.replace(".weight", ".weight_scale")] = torch.ones(())
    save_file(state, tmp_path / "model.safetensors")
    with refused("weights-quantised", says="no marker"):
        from_file(tmp_path / "model.safetensors", LoraConfig(rank=2, base="float32"))


def nf4_file(path, nested):
    """A file as bitsandbytes writes it, and the network of its values; layers of widths that blocks divide are packed."""
    denoiser, state = contract.build("wan-tiny"), {}
    for key, value in denoiser.module.state_dict().items():
        state[key] = value.clone()
        if value.ndim == 2 and "blocks" in key and value.shape[1] % 64 == 0:
            codes, told = bits.quantize_4bit(value, quant_type="nf4", blocksize=64, compress_statistics=nested)
            state[key] = codes
            state |= {f"{key}.{part}": one.clone() for part, one in told.as_dict(packed=True).items()}
            value.copy_(bits.dequantize_4bit(codes, told))
    save_file(state, path)
    return denoiser, [key for key, value in state.items() if value.dtype == torch.uint8 and key.endswith(".weight")]


@pytest.mark.parametrize("nested", [False, True])
def test_files_of_bitsandbytes_stay_as_they_are_in_an_nf4_base(tmp_path, nested):
    """Codes and scales stand for the values that bitsandbytes gives, in any base, and the digest is that of them."""
    reference, packed = nf4_file(tmp_path / "model.safetensors", nested)
    values = reference.module.state_dict()
    assert packed
    for base in ("nf4", "float32"):
        denoiser = from_file(tmp_path / "model.safetensors", LoraConfig(rank=2, base=base, targets=["to_q"]))
        assert not any(parameter.is_meta for parameter in denoiser.module.parameters())
        for key in packed:
            layer = denoiser.module.get_submodule(key.removesuffix(".weight"))
            assert isinstance(layer, QuantizedLinear) == (base == "nf4")
            torch.testing.assert_close(layer.weight, values[key], rtol=1e-5, atol=1e-7)
    wide = contract.answer(denoiser, inputs := contract.example(contract.shapes("wan-tiny")[-1], "wan-tiny"))
    torch.testing.assert_close(wide[""], reference.predict(inputs), rtol=1e-4, atol=1e-6)
    scaled = load_file(tmp_path / "model.safetensors") | {packed[0] + "_scale": torch.ones(())}
    save_file(scaled, tmp_path / "scaled.safetensors")
    with refused("weights-quantised", says="beside weights in 8 bits"):
        from_file(tmp_path / "scaled.safetensors", LoraConfig(rank=2, base="nf4"))
    digests = {from_file(tmp_path / "model.safetensors", LoraConfig(base=b)).base.digest for b in ("nf4", "int8")}
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"num_attention_heads": 4, "attention_head_dim": 6}, "num_attention_heads = 4"),
        ({"rope_max_seq_len": 7}, "rope_max_seq_len = 7"),
        ({"num_attention_heads": 2, "in_channels": 99, "image_dim": None, "eps": 1.0}, ""),
    ],
)
def test_a_config_that_means_another_network_is_told(tmp_path, caplog, said, told):
    """No shape tells into how many heads the channels are divided."""
    save_file(contract.build("wan-tiny").module.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "WanTransformer3DModel"} | said), encoding="utf-8")
    from_file(tmp_path / "model.safetensors", None)
    warnings = [record.message for record in caplog.records if "its config has" in record.message]
    assert len(warnings) == bool(told)
    assert all(told in warning for warning in warnings)


def test_storage_that_is_not_read_is_told(tmp_path):
    """4 bits of bitsandbytes where all weights would be trained."""
    save_file({"a.weight.quant_state.bitsandbytes__nf4": torch.zeros(1)}, tmp_path / "model.safetensors")
    with refused("weights-quantised"):
        from_file(tmp_path / "model.safetensors", None)


def from_file(path, lora, compute=F32):
    return factory.build_denoiser(
        ModelConfig(name="wan-tiny", weights=str(path)),
        autoencoder=contract.AUTOENCODER,
        text=contract.TEXT,
        device="cpu",
        seed=0,
        compute=compute,
        lora=lora,
    )


def test_a_digest_knows_names_and_values_but_neither_order_nor_precision():
    state = {"b": torch.arange(6.0), "a": torch.ones(2)}
    alike = [dict(reversed(state.items())), {name: value.bfloat16() for name, value in state.items()}]
    assert {base_model.digest(each) for each in alike} == {base_model.digest(state)}
    assert base_model.digest({"b": state["a"], "a": state["b"]}) != base_model.digest(state)
