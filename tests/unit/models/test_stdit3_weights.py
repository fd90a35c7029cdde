"""Weights come back as they went out, from wherever they lie; what does not fit is said, never skipped."""

import json
import sys

import pytest
import torch
from refused import refused
from safetensors.torch import save_file

from reelworks.core.errors import UserError
from reelworks.models import factory
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.models.families.stdit3 import network
from reelworks.models.families.stdit3.model import STDiT3
from reelworks.models.families.stdit3.spec import STDiT3Config

SIZES = {"in_channels": 12, "caption_channels": 8, "model_max_length": 4}
SIZES |= {"depth": 1, "hidden_size": 32, "num_heads": 2, "pred_sigma": False}


def fresh(seed=0, **changes):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = STDiT3(STDiT3Config(**SIZES | changes))
        network.NETWORK.init(module, module.config)
    return module


def load(module, source):
    network.NETWORK.load(module, module.config, source)


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def as_file(state, folder):
    save_file(state, folder / "any.safetensors")
    return folder / "any.safetensors"


def as_folder(state, folder):
    save_file(state, folder / "model.safetensors")
    save_file({"x": torch.zeros(1)}, folder / "other.safetensors")
    return folder


def as_pickle(state, folder):
    torch.save(state, folder / "ema.pt")
    return folder


def as_shards(state, folder):
    keys = list(state)
    parts = {"a.safetensors": keys[::2], "b.safetensors": keys[1::2]}
    for name, part in parts.items():
        save_file({key: state[key] for key in part}, folder / name)
    weight_map = {key: name for name, part in parts.items() for key in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    return folder


@pytest.mark.parametrize("write", [as_file, as_folder, as_pickle, as_shards])
def test_roundtrip(tmp_path, write):
    source, target = fresh(1), fresh(2)
    assert not same(source, target)
    load(target, str(write(source.state_dict(), tmp_path)))
    assert same(source, target)


def test_half_weights_become_float32_masters(tmp_path):
    half = {key: value.bfloat16() for key, value in fresh(1).state_dict().items()}
    target = fresh(2)
    load(target, str(as_file(half, tmp_path)))
    assert {p.dtype for p in target.parameters()} == {torch.float32}
    assert torch.equal(target.t_block[1].weight, half["t_block.1.weight"].float())


@pytest.mark.parametrize(("length", "rows"), [(2, [0, 1]), (6, [0, 1, 2, 3, 3, 3])])
def test_the_empty_caption_is_cut_or_its_last_row_repeated(tmp_path, length, rows):
    source, target = fresh(1), fresh(2, model_max_length=length)
    load(target, str(as_file(source.state_dict(), tmp_path)))
    assert torch.equal(target.y_embedder.y_embedding, source.y_embedder.y_embedding[rows])


def test_the_registry_reads_from_the_weights_whether_variance_is_predicted(tmp_path):
    model = ModelConfig(name="stdit3-tiny", hidden_size=32, depth=1, num_heads=2)
    for pred_sigma in (False, True):
        path = as_file(fresh(1, pred_sigma=pred_sigma).state_dict(), tmp_path)
        denoiser = factory.build_denoiser(
            model.model_copy(update={"weights": str(path)}),
            autoencoder=AutoencoderConfig(stride=2),
            text=TextEncoderConfig(dim=8, max_length=4),
            device="cpu",
            seed=0,
        )
        assert denoiser.module.config.pred_sigma == pred_sigma
        assert same(denoiser.module, fresh(1, pred_sigma=pred_sigma))


def as_pixart(module):
    """The state of a network for pictures: no frames, no rates, patches of two axes."""
    state = {}
    for key, value in module.state_dict().items():
        if not key.startswith(("temporal_blocks.", "rope.", "fps_embedder.")) and "_norm." not in key:
            state[key.replace("spatial_blocks.", "blocks.")] = value
    state["x_embedder.proj.weight"] = state["x_embedder.proj.weight"].squeeze(2)
    return state | {"pos_embed": torch.zeros(1, 4, 32)}


def test_pixart_weights_become_the_spatial_half_and_frames_begin_as_pictures(tmp_path):
    """A file of PixArt-Σ, as it is published, starts an STDiT3; its temporal half adds nothing yet."""
    source, target = fresh(1), fresh(2)
    with torch.no_grad():
        for name, parameter in source.named_parameters():
            if "_norm." not in name:
                parameter.normal_(std=0.2)
        for parameter in target.parameters():
            parameter.fill_(float("nan"))
    torch.save({"state_dict": as_pixart(source)}, tmp_path / "PixArt.pth")
    load(target, str(tmp_path / "PixArt.pth"))
    own, other = target.state_dict(), source.state_dict()
    for key, value in own.items():
        assert torch.isfinite(value).all()
        drawn = key.startswith(("temporal_blocks.", "fps_embedder.")) and "_norm." not in key
        assert torch.equal(value, other[key]) != drawn, key
    assert not own["temporal_blocks.0.attn.proj.weight"].any()
    state = as_pixart(source)
    state.pop("t_block.1.bias")
    torch.save({"state_dict": state}, tmp_path / "torn.pth")
    with refused("weights-do-not-fit", "model.weights", says=r"1 missing of .*    missing: t_block\.1\.bias"):
        load(target, str(tmp_path / "torn.pth"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("t_block.1.bias"), r"1 missing of .*\n    missing: t_block\.1\.bias"),
        (lambda s: s.update(extra=torch.zeros(1)), r"1 unexpected of .*\n    unexpected: extra"),
        (
            lambda s: s.update({"t_block.1.bias": torch.zeros(3)}),
            r"1 of another shape.*\n    of another shape: t_block\.1\.bias \[3\] instead of \[192\]",
        ),
        (lambda s: [s.pop(key) for key in list(s)[:8]], r"8 missing of .*\n    missing: rope\.freqs, .*, and 5 more"),
    ],
)
def test_keys_and_shapes_that_differ_are_listed_and_nothing_is_loaded(tmp_path, change, message):
    state, target = fresh(1).state_dict(), fresh(2)
    change(state)
    with pytest.raises(UserError, match=message):
        load(target, str(as_file(state, tmp_path)))
    assert same(target, fresh(2))


class Payload:
    def __reduce__(self):
        return (exec, ("raise SystemExit('ran')",))


def test_a_pickle_that_would_run_a_program_is_refused(tmp_path):
    torch.save({"x": Payload()}, tmp_path / "bad.pt")
    with refused("weights-unreadable", "model.weights", says=r"bad\.pt cannot be read"):
        load(fresh(), str(tmp_path / "bad.pt"))


def test_what_is_not_weights_is_refused(tmp_path):
    with refused("weights-not-found", "model.weights"):
        load(fresh(), str(tmp_path / "nowhere.safetensors"))
    with refused("weights-folder-ambiguous", "model.weights", says="holds: none"):
        load(fresh(), str(tmp_path))
    (tmp_path / "torn.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    with refused("weights-unreadable", "model.weights", says=r"torn\.safetensors cannot be read"):
        load(fresh(), str(tmp_path / "torn.safetensors"))
    save_file({"x": torch.zeros(1)}, tmp_path / "second.safetensors")
    with refused("weights-folder-ambiguous", "model.weights", says=r"holds: second\.safetensors, torn\.safetensors"):
        load(fresh(), str(tmp_path))
    torch.save({"model": {}, "step": 3}, tmp_path / "trainer.pt")
    with refused("weights-unreadable", "model.weights"):
        load(fresh(), str(tmp_path / "trainer.pt"))


def test_a_hub_id_without_the_hub_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with refused("hub-package-missing", "model.weights", says="owner/some-model"):
        load(fresh(), "owner/some-model")
