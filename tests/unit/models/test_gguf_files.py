"""GGUF files: every type is widened as its authors do it, and a network of a file is that of the values it stands for."""

from __future__ import annotations

import contextlib
import struct
import sys
import warnings

import gguf
import numpy as np
import pytest
import tiny_recipe
import torch
from refused import refused
from torch import nn

from reelworks.models import base_model, factory
from reelworks.models.adapters import frozen, inject
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.adapters.frozen import GgufLinear
from reelworks.models.config import ModelConfig
from reelworks.models.storage import stored_weights, weights
from reelworks.models.storage.gguf_files import GgufWeight
from reelworks.testing import contract
from reelworks.training.assembly import build
from reelworks.training.memory import estimate
from reelworks.training.recipe import recipe_file

TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]


def write(path, state, shapes=None):
    """Write arrays, each with the type of its codes or None."""
    writer = gguf.GGUFWriter(path, "test")
    for name, shape in (shapes or {}).items():
        writer.add_array(f"comfy.gguf.orig_shape.{name}", list(shape))
    for name, (data, kind) in state.items():
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def bytes_of(type, out, blocks):
    """Random rows of a type whose values are finite, and those values as the format's authors compute them."""
    kind = gguf.GGMLQuantizationType[type]
    size = gguf.GGML_QUANT_SIZES[kind][1]
    stored = np.random.default_rng(0).integers(0, 256, (40 * out * blocks, size), dtype=np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about infinite scales, which are left out
        values = gguf.dequantize(stored, kind)
    fine = np.isfinite(values).all(axis=1) & (np.abs(values).max(axis=1) < 100)
    assert fine.sum() >= out * blocks
    rows = np.ascontiguousarray(stored[fine][: out * blocks]).reshape(out, -1)
    return rows, torch.from_numpy(gguf.dequantize(rows, kind))


@pytest.mark.parametrize("type", TYPES)
def test_codes_stand_for_the_values_of_the_formats_authors(tmp_path, type):
    """From the file, of any number of blocks in a row, to the last bits of float32."""
    stored, wanted = bytes_of(type, 6, 3)
    path = write(tmp_path / "one.gguf", {"a.weight": (stored, gguf.GGMLQuantizationType[type])})
    found = weights.read(str(path))["a.weight"]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    (kept,) = weights.read(str(path), keep_codes=True).values()
    assert (kept.is_meta, kept.shape, stored_weights.stored_weight(kept).type) == (True, wanted.shape, type)


@pytest.mark.parametrize("type", TYPES)
def test_a_scale_within_a_block_that_is_not_finite_is_found(tmp_path, type):
    """Wherever a value of the format's authors is infinite or NaN, and nowhere else."""
    kind, size = gguf.GGMLQuantizationType[type], gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]][1]
    stored, _ = bytes_of(type, 1, 1)
    for place in range(0, size - 1, 2):
        stored_there = stored.copy()
        stored_there[0, place : place + 2] = np.array([np.nan], np.float16).view(np.uint8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            is_fine = np.isfinite(gguf.dequantize(stored_there, kind)).all()
        weight = GgufWeight((torch.from_numpy(stored_there),), type).on_meta()
        with contextlib.nullcontext() if is_fine else refused("weights-not-finite", says="a.weight"):
            stored_weights.require_finite({"a.weight": weight})


@pytest.mark.parametrize("base", ["gguf", "nf4"])
def test_a_file_with_a_scale_that_is_not_finite_is_refused(tmp_path, base):
    network_file(tmp_path / "model.gguf", "wan-tiny", is_release=True)
    kept = weights.read(str(tmp_path / "model.gguf"), keep_codes=True)
    (rows, *_) = (stored for value in kept.values() if (stored := stored_weights.stored_weight(value)) is not None)
    whole = (tmp_path / "model.gguf").read_bytes()
    at = whole.index(rows.parts[0].numpy().tobytes())
    (tmp_path / "bad.gguf").write_bytes(whole[:at] + struct.pack("<e", float("inf")) + whole[at + 2 :])
    with refused("weights-not-finite", "model.weights", says="1 of its [0-9]+ tensors has") as told:
        from_file(tmp_path / "bad.gguf", "wan-tiny", LoraConfig(rank=2, base=base))
    assert told.value.value == str(tmp_path / "bad.gguf")


def test_plain_and_reshaped_tensors_are_read(tmp_path):
    """Of any dtype and number of axes; ComfyUI's files tell the shapes of those that were reshaped for their blocks."""
    values = torch.arange(2 * 3 * 4 * 8).float().view(2, 3, 4, 8)
    rounded = gguf.quantize(values.numpy().reshape(-1, 32), gguf.GGMLQuantizationType.Q8_0)
    path = write(
        tmp_path / "plain.gguf",
        {
            "half": (values.half().numpy(), None),
            "brain": (values.bfloat16().view(torch.uint8).numpy(), gguf.GGMLQuantizationType.BF16),
            "vector": (values.flatten().numpy(), None),
            "five": (values[None].numpy(), None),
            "conv": (rounded, gguf.GGMLQuantizationType.Q8_0),
        },
        {"conv": (2, 3, 4, 8)},
    )
    found = weights.read(str(path))
    assert torch.equal(found["half"], values.half())
    assert torch.equal(found["brain"], values.bfloat16())
    assert torch.equal(found["vector"], values.flatten())
    assert torch.equal(found["five"], values[None])
    torch.testing.assert_close(found["conv"], values, rtol=0.01, atol=0.5)


def test_files_that_cannot_be_read_are_told(tmp_path, monkeypatch):
    """Cut off in the header or in the values, without a type's meaning, or without the package."""
    stored, _ = bytes_of("Q4_K", 8, 4)
    path = write(tmp_path / "whole.gguf", {"a.weight": (stored, gguf.GGMLQuantizationType.Q4_K)})
    whole = path.read_bytes()
    for size in (20, len(whole) // 2, len(whole) - 60):
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        with refused("weights-unreadable", "model.weights"):
            weights.read(str(tmp_path / "cut.gguf"))
    stored, _ = bytes_of("IQ1_S", 2, 1)
    write(tmp_path / "other.gguf", {"a.weight": (stored, gguf.GGMLQuantizationType.IQ1_S)})
    with refused("weights-quantised", "model.weights"):
        weights.read(str(tmp_path / "other.gguf"))
    with refused("weights-not-found", "model.weights"):
        weights.read("owner/name.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with refused("gguf-not-installed", "model.weights"):
        weights.read(str(path))


@pytest.mark.parametrize("kind", [0, 8, 9])  # numbers, texts and arrays
def test_a_header_of_more_values_than_its_file_holds_is_told_at_once(tmp_path, kind):
    """Reading on would take memory until there is none."""
    name, array, path = b"tokens", 9, tmp_path / "long.gguf"
    header = struct.pack("<IQQQ", 3, 0, 1, len(name)) + name + struct.pack("<IIQ", array, kind, 1 << 40)
    path.write_bytes(b"GGUF" + header + bytes(64))
    with refused("weights-unreadable", "model.weights", says="it is truncated"):
        weights.read(str(path))


# Names of diffusers and of the release, in the order in which they are replaced.
RELEASES = {
    "z-image-tiny": [
        ("all_final_layer.2-1.", "final_layer."),
        ("all_x_embedder.2-1.", "x_embedder."),
        (".to_out.0.", ".out."),
        (".norm_k.", ".k_norm."),
        (".norm_q.", ".q_norm."),
    ],
    "wan-tiny": [
        ("attn1.", "self_attn."),
        ("attn2.", "cross_attn."),
        (".to_q.", ".q."),
        (".to_k.", ".k."),
        (".to_v.", ".v."),
        (".to_out.0.", ".o."),
        (".norm2.", ".norm3."),
        ("ffn.net.0.proj.", "ffn.0."),
        ("ffn.net.2.", "ffn.2."),
        ("condition_embedder.time_embedder.linear_1.", "time_embedding.0."),
        ("condition_embedder.time_embedder.linear_2.", "time_embedding.2."),
        ("condition_embedder.text_embedder.linear_1.", "text_embedding.0."),
        ("condition_embedder.text_embedder.linear_2.", "text_embedding.2."),
        ("condition_embedder.time_proj.", "time_projection.1."),
        ("proj_out.", "head.head."),
    ],
}


def released(name, state):
    """Give tensors the names of a release, which holds query, key and value of Z-Image in one."""
    state = dict(state)
    if name == "z-image-tiny":
        for key in [key for key in state if ".to_q." in key]:
            state[key.replace("to_q", "qkv")] = torch.cat([state.pop(key.replace("to_q", f"to_{p}")) for p in "qkv"])
    else:
        state = {key.replace("scale_shift_table", "modulation"): value for key, value in state.items()}
        state["head.modulation"] = state.pop("modulation")
    for old, new in RELEASES[name]:
        state = {key.replace(old, new): value for key, value in state.items()}
    return state


def network_file(path, name, *, is_release, reference=None):
    """Write a tiny network with matrices in Q8_0 and Q5_0, and return the network of the values that they stand for."""
    reference, written = reference or contract.build(name), {}
    state = reference.module.state_dict()
    for key, value in state.items():  # rounded beforehand, since rounding again changes nothing
        if value.ndim == 2 and value.shape[0] > 1 and value.shape[1] % 32 == 0:
            codes = gguf.quantize(value.numpy(), kind_of(key))
            value.copy_(torch.from_numpy(gguf.dequantize(codes, kind_of(key))))
    for key, value in (released(name, state) if is_release else state).items():
        if value.ndim == 2 and value.shape[0] > 1 and value.shape[1] % 32 == 0:
            codes = gguf.quantize(value.numpy(), kind_of(key))
            assert np.array_equal(gguf.dequantize(codes, kind_of(key)), value.numpy())
            written[key] = codes, kind_of(key)
        else:
            written[key] = value.numpy(), None
    write(path, written)
    return reference


def kind_of(key):
    return gguf.GGMLQuantizationType.Q5_0 if "feed_forward" in key else gguf.GGMLQuantizationType.Q8_0


def from_file(path, name, lora):
    return factory.build_denoiser(
        ModelConfig(name=name, weights=str(path)),
        autoencoder=contract.AUTOENCODER,
        text=contract.TEXT,
        device="cpu",
        seed=0,
        lora=lora,
    )


CASES = pytest.mark.parametrize(
    ("name", "is_release"), [("z-image-tiny", True), ("z-image-tiny", False), ("wan-tiny", True)]
)


@CASES
def test_a_network_of_a_file_is_that_of_its_values(tmp_path, name, is_release):
    """Answers and gradients of the adapter, on codes and on widened weights, and one digest; codes are kept."""
    reference = network_file(tmp_path / "model.gguf", name, is_release=is_release)
    digest = base_model.digest(reference.module.state_dict())
    whole = from_file(tmp_path / "model.gguf", name, None)
    for key, value in whole.module.state_dict().items():
        torch.testing.assert_close(value, reference.module.state_dict()[key], rtol=1e-6, atol=1e-7)
    found = {base: from_file(tmp_path / "model.gguf", name, LoraConfig(rank=2, base=base)) for base in ("gguf", "nf4")}
    assert {one.base.digest for one in found.values()} == {digest}
    denoiser = found["gguf"]
    inside = {id(m) for block in denoiser.sharding().blocks for m in block.modules()}
    layers = {n: m for n, m in denoiser.module.named_modules() if isinstance(m, nn.Linear) and id(m) in inside}
    kept = {n: m for n, m in layers.items() if isinstance(m, GgufLinear)}
    expected = {n for n, m in layers.items() if "lora_" not in n and m.in_features % 32 == 0}
    assert set(kept) == expected != set()
    assert all(layer.rows.dtype == torch.uint8 for layer in kept.values())
    assert name != "z-image-tiny" or any("to_q" in n for n in kept)
    inject.inject(reference, LoraConfig(rank=2), seed=0)
    inputs = contract.example(contract.shapes(name)[-1], name)
    for one in (reference, denoiser):
        for key, value in inject.weights(one.module).items():
            value.copy_(torch.randn(value.shape, generator=torch.Generator().manual_seed(len(key))) * 0.1)
    wanted, answered = contract.answer(reference, inputs), contract.answer(denoiser, inputs)
    assert answered.keys() == wanted.keys()
    torch.testing.assert_close(answered, wanted, rtol=1e-4, atol=1e-6)


def test_rows_may_be_split_joined_and_reordered_and_nothing_else(tmp_path):
    """A network that takes whole rows of one type gets their codes; all other weights are widened, to the same values."""
    kinds = {"a": "Q4_K", "b": "Q4_K", "c": "Q6_K", "d": "Q4_K", "e": "Q4_K", "f": "Q4_K"}
    stored = {n: bytes_of(kind, 4, 2)[0] for n, kind in kinds.items()}
    path = write(tmp_path / "m.gguf", {n: (stored[n], gguf.GGMLQuantizationType[kinds[n]]) for n in kinds})
    state, values = weights.read(str(path), keep_codes=True), weights.read(str(path))

    def fitted(state):
        return {
            "split.weight": state["a"][1:3],
            "joined.weight": torch.cat([state["e"][2:], state["a"][:1]]),
            "mixed.weight": torch.cat([state["c"], state["b"][:1]]),
            "with mixed.weight": torch.cat([state["b"], state["f"]]),
            "reordered.weight": state["a"][[3, 1, 0]],
            "columns.weight": state["d"][:, :256],
        }

    matched, stored = stored_weights.match(state, fitted)
    assert stored.keys() == {"split.weight", "joined.weight", "reordered.weight"}
    assert {name for name, value in matched.items() if value.is_meta} == stored.keys()
    for name, weight in stored.items():
        assert torch.equal(weight.dequantize(), fitted(values)[name])
    assert all(torch.equal(matched[name], fitted(values)[name]) for name in matched.keys() - stored.keys())


def test_a_base_of_codes_needs_a_file_of_codes():
    """Fresh weights have none."""
    with refused("lora-base-not-gguf", "lora.base"):
        contract.build("wan-tiny", lora=LoraConfig(rank=2, base="gguf"))


def test_estimates_know_the_sizes_of_a_files_codes(tmp_path):
    """To the last byte those of the base that is trained on, and as many numbers as in any storage."""

    def recipe(base=None, **model):
        return recipe_file.parse(
            tiny_recipe.least(
                bucket=[{"resolution": "64px", "num_frames": 1}],
                model={"name": "z-image-tiny"} | model,
                precision={"compute": "float32"},
            )
            | ({"lora": {"rank": 2, "base": base}} if base else {})
        )

    cpu, path = torch.device("cpu"), tmp_path / "model.gguf"
    network_file(path, "z-image-tiny", is_release=True, reference=build.denoiser(recipe(), cpu))
    bytes, numbers, counts = {}, set(), {}
    for base in ("gguf", "float32"):
        made = recipe(base, weights=str(path))
        real, told = build.denoiser(made, cpu), estimate.network(made)
        assert all(parameter.is_meta for parameter in told.module.parameters())
        bytes[base], known = (estimate.sizes(made, one).base_bytes for one in (real, told))
        assert known == bytes[base]
        counts[base] = frozen.count(real.module)
        numbers |= {sum(p.numel() for p in one.module.parameters()) + frozen.count(one.module) for one in (real, told)}
    assert len(numbers) == 1
    # 22 or 34 bytes for 32 values instead of 128.
    assert counts["float32"] == 0
    assert 2.9 < (bytes["float32"] - bytes["gguf"]) / counts["gguf"] < 3.4
