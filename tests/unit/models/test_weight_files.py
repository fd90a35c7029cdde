"""Files of weights that are damaged, cut off or not there: which file, what is wrong, and nothing half loaded."""

from __future__ import annotations

import json
import os
import pickle
import warnings
from types import SimpleNamespace

import pytest
import torch
from refused import refused
from safetensors.torch import load_file, save_file

from reelworks.core.errors import UserError
from reelworks.models.storage import file_facts, weights
from reelworks.models.storage.tensor_files import TensorFiles
from reelworks.training.assembly import build

STATE = {"a.weight": torch.arange(600.0).view(20, 30), "a.bias": torch.ones(20)}


def safe(folder):
    save_file(STATE, folder / "a.safetensors")
    return folder / "a.safetensors"


def pickled(folder):
    torch.save(STATE, folder / "a.pt")
    return folder / "a.pt"


def cut(path, share):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    return path


def shards(folder):
    """Two shards and their index."""
    for i, (name, value) in enumerate(STATE.items()):
        save_file({name: value}, folder / f"part-{i}.safetensors")
    weight_map = {name: f"part-{i}.safetensors" for i, name in enumerate(STATE)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    return folder


def without_a_shard(folder):
    (shards(folder) / "part-1.safetensors").unlink()
    return folder


def with_a_cut_shard(folder):
    cut(shards(folder) / "part-1.safetensors", 0.9)
    return folder


def with_a_bad_index(folder):
    (shards(folder) / "model.safetensors.index.json").write_text('{"weight_map": [1]}', encoding="utf-8")
    return folder


def with_index(**places):
    """Two shards whose index has other files for some tensors, or more tensors."""

    def make(folder):
        index = shards(folder) / "model.safetensors.index.json"
        (folder / "folder").mkdir()
        save_file({"elsewhere": torch.ones(2)}, folder.parent / "elsewhere.safetensors")
        told = json.loads(index.read_text(encoding="utf-8"))
        told["weight_map"] |= {name.replace("_", "."): place for name, place in places.items()}
        index.write_text(json.dumps(told), encoding="utf-8")
        return folder

    return make


def of_pickles(change):
    """Two shards that are pickles, with their index."""

    def make(folder):
        weight_map = {name: f"part-{i}.bin" for i, name in enumerate(STATE)}
        held = {shard: {name: STATE[name]} for name, shard in weight_map.items()}
        change(held, weight_map)
        for shard, state in held.items():
            torch.save(state, folder / shard)
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
        return folder

    return make


def with_a_tensor_twice(folder):
    save_file(STATE, shards(folder) / "part-1.safetensors")
    return folder


def pickle_of(**changed):
    def make(folder):
        torch.save(STATE | {name.replace("_", "."): value for name, value in changed.items()}, folder / "a.pt")
        return folder / "a.pt"

    return make


def with_a_nested_tensor(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.save({"a": torch.nested.nested_tensor([torch.ones(2)])}, folder / "a.pt")
    return folder / "a.pt"


def with_a_number_as_name(folder):
    torch.save({0: torch.ones(2)}, folder / "a.pt")
    return folder / "a.pt"


def of_bytes(name, data):
    def make(folder):
        (folder / name).write_bytes(data)
        return folder / name

    return make


class _Program:
    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda f: cut(safe(f), 0.999), r"a.safetensors cannot be read: it is truncated: 2,\d+ of 2,\d+ bytes"),
        (lambda f: cut(safe(f), 0.9), r"a.safetensors cannot be read: it is truncated: 2,\d+ of 2,\d+ bytes"),
        (lambda f: cut(safe(f), 0.01), "a.safetensors cannot be read: .*truncated within it"),
        (of_bytes("a.safetensors", b""), "no header"),
        (of_bytes("a.safetensors", b"<!DOCTYPE html><html>please log in</html>" * 9), "no header"),
        (of_bytes("a.safetensors", b"\x09\0\0\0\0\0\0\0not json!" + bytes(99)), "a.safetensors cannot be read"),
        (of_bytes("a.safetensors", b"version https://git-lfs.github.com/spec/v1\noid 1"), "git lfs pull"),
        (of_bytes("a.pt", b"version https://git-lfs.github.com/spec/v1\noid 1"), "git lfs pull"),
        (lambda f: cut(pickled(f), 0.9), "a.pt cannot be read"),
        (lambda f: cut(pickled(f), 0.02), "a.pt cannot be read"),
        (of_bytes("a.pt", b""), "a.pt cannot be read"),
        (of_bytes("a.pt", pickle.dumps(_Program())), "a.pt cannot be read"),
        (of_bytes("a.bin", b"\x80\x02}q\x00X\x01"), "a.bin cannot be read"),
        (without_a_shard, "1 of the 2 files of model.safetensors.index.json is missing: part-1"),
        (with_a_cut_shard, "part-1.safetensors cannot be read: it is truncated"),
        (with_a_bad_index, "index.json cannot be read: it is not an index"),
        (with_index(a_bias="a" * 5000), "it is not an index"),
        (with_index(a_bias=".."), "is missing: .."),
        (
            with_index(elsewhere="../elsewhere.safetensors"),
            "files of model.safetensors.index.json is missing: elsewhere",
        ),
        (with_index(a_bias="folder"), "is missing: folder"),
        (with_index(a_scale="part-1.safetensors"), "its files hold none or several of some of its tensors: a.scale"),
        (with_index(a_weight="part-1.safetensors"), "its files hold none or several of some of its tensors: a.weight"),
        (
            of_pickles(lambda _, told: told.update({"a.scale": "part-1.bin"})),
            "its files hold none or several of some of its tensors: a.scale",
        ),
        (
            of_pickles(lambda held, _: held["part-1.bin"].update(STATE)),
            "its files hold none or several of some of its tensors: a.weight",
        ),
        (with_a_tensor_twice, "its files hold none or several of some of its tensors: a.weight"),
        (pickle_of(a_bias=torch.ones(20, device="meta")), "not a flat table of tensors"),
        (pickle_of(a_bias=torch.ones(20).to_sparse()), "not a flat table of tensors"),
        (with_a_nested_tensor, "not a flat table of tensors"),
        (pickle_of(a_bias={"b": torch.ones(2)}), "not a flat table of tensors"),
        (with_a_number_as_name, "not a flat table of tensors"),
    ],
)
def test_damage_is_told_with_the_file(tmp_path, monkeypatch, make, said):
    """One message for each kind, under the recipe's key, with a remedy; no program in a file runs."""
    monkeypatch.chdir(tmp_path)
    source = str(make(tmp_path))
    with pytest.raises(UserError, match=said) as caught:
        weights.read(source)
    assert (caught.value.field, caught.value.value) == ("model.weights", source)
    assert "again" in caught.value.remedy or "download" in caught.value.remedy
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "header",
    [
        b"[1]", b"5", b"[" * 100_000, b'{"a": 1}', b'{"a": {}}', b'{"a": {"dtype": "F8_E4M3", "shape": [], "data_offsets": [0]}}',
        b'{"a": {"dtype": ["F32"], "shape": [], "data_offsets": [0, 4]}}', b'{"__metadata__": 5}', b'{"__metadata__": {"a": [1]}}',
    ],
)  # fmt: skip
def test_facts_of_a_file_are_left_to_its_reader_where_its_header_is_none(tmp_path, header):
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    assert file_facts.base_of(str(path)) is None
    assert file_facts.objective_of(str(path)) == (None, False)
    assert not file_facts.has_text_encoders(str(path))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_facts_of_a_pipe_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.safetensors")
    assert file_facts.objective_of(str(tmp_path / "a.safetensors")) == (None, False)


@pytest.mark.parametrize(
    ("dtype", "base"), [(torch.float8_e4m3fn, "float8"), (torch.int8, "int8"), (torch.float16, None)]
)
def test_the_base_of_a_file_is_the_type_of_most_of_its_numbers(tmp_path, dtype, base):
    save_file(STATE | {"a.weight": STATE["a.weight"].to(dtype)}, tmp_path / "a.safetensors")
    assert file_facts.base_of(str(tmp_path / "a.safetensors")) == base


@pytest.mark.parametrize("make", [safe, pickled, shards, of_pickles(lambda *_: None)])
def test_whole_files_are_read(tmp_path, make):
    """Each kind, whole, brings every tensor; also a pickle of the oldest format."""
    found = weights.read(str(make(tmp_path)))
    assert found.keys() == STATE.keys()
    assert all(torch.equal(value, STATE[name]) for name, value in found.items())
    torch.save(STATE, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    assert torch.equal(weights.read(str(tmp_path / "old.pth"))["a.bias"], STATE["a.bias"])


@pytest.mark.parametrize("name", ["diffusion_pytorch_model", "model"])
def test_of_copies_in_a_folder_the_one_without_a_variant_counts(tmp_path, name):
    """Repositories of Stable Diffusion hold fp16 and non_ema beside it, of one file and in shards."""
    zeros = {key: torch.zeros_like(value) for key, value in STATE.items()}
    for variant in ("fp16", "non_ema"):
        save_file(zeros, tmp_path / f"{name}.{variant}.safetensors")
        index = {"weight_map": dict.fromkeys(STATE, f"{name}.{variant}.safetensors")}
        (tmp_path / f"{name}.safetensors.index.{variant}.json").write_text(json.dumps(index), encoding="utf-8")
    torch.save(zeros, tmp_path / f"{name}.bin")
    save_file(STATE, tmp_path / f"{name}.safetensors")
    assert torch.equal(weights.read(str(tmp_path))["a.weight"], STATE["a.weight"])


@pytest.mark.parametrize("ending", ["ckpt", "CKPT"])
def test_a_pickle_may_be_called_a_checkpoint_and_so_may_another_file(tmp_path, ending):
    save_file(STATE, tmp_path / f"new.{ending}")
    assert torch.equal(weights.read(str(tmp_path / f"new.{ending}"))["a.weight"], STATE["a.weight"])
    torch.save({"state_dict": STATE}, tmp_path / f"v1-5.{ending}")
    assert torch.equal(weights.read(str(tmp_path / f"v1-5.{ending}"))["a.weight"], STATE["a.weight"])


@pytest.mark.parametrize("name", ["A.SAFETENSORS", "A.BIN", "A.CKPT"])
def test_files_whose_names_are_in_capitals_are_found_in_a_folder(tmp_path, name):
    if name == "A.SAFETENSORS":
        save_file(STATE, tmp_path / name)
    else:
        torch.save(STATE, tmp_path / name)
    assert weights.read(str(tmp_path)).keys() == STATE.keys()


def test_a_state_that_does_not_fit_changes_nothing(tmp_path):
    """One tensor too few, and the module keeps all of its own."""
    module = torch.nn.ModuleDict({"a": torch.nn.Linear(30, 20)})
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = load_file(safe(tmp_path))
    state.pop("a.bias")
    with refused("weights-do-not-fit", "model.weights", says="1 missing of 2 tensors.*    missing: a.bias"):
        weights.load_into(module, state, "a.safetensors")
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("is_mapped", [False, True])
def test_weights_that_are_not_finite_are_refused_before_a_step(bad, dtype, is_mapped):
    state = {name: value.to(dtype).clone() for name, value in STATE.items()}
    state["a.bias"][3] = bad
    module = torch.nn.ModuleDict({"a": torch.nn.Linear(30, 20, device="meta" if is_mapped else "cpu")})
    with refused("weights-not-finite", "autoencoder.weights", says="1 of its 2 tensors .*: a.bias"):
        weights.load_into(module, state, "a.safetensors", "autoencoder.weights")


def test_each_tensor_of_several_files_is_read_from_its_own(tmp_path):
    with TensorFiles(sorted(shards(tmp_path).glob("*.safetensors"))) as tensors:
        for name, value in [*STATE.items()] * 2:
            assert torch.equal(tensors.read(name), value)
            assert tensors.facts[name] == (value.dtype, value.shape)


@pytest.mark.parametrize(
    ("stated", "rescaled", "objective"),
    [
        ({"prediction_type": "v_prediction", "rescale_betas_zero_snr": True}, True, "v-prediction"),
        ({"prediction_type": "v_prediction"}, False, "v-prediction"),
        ({"prediction_type": "epsilon", "rescale_betas_zero_snr": True}, False, "epsilon"),
        ({"prediction_type": "sample"}, False, None),
        ([], False, None),
        ("file with v_pred", False, "v-prediction"),
        ("file with v_pred and ztsnr", True, "v-prediction"),
        ("file of epsilon", False, "epsilon"),
        ("file", False, None),
    ],
)
def test_weights_that_were_trained_with_another_objective_are_warned_of(tmp_path, caplog, stated, rescaled, objective):
    """As a pipeline's scheduler, a file's metadata or its tensors say; recipes that predict neither noise nor v are left alone."""
    place = tmp_path / ("weights.safetensors" if isinstance(stated, str) else "weights")
    if isinstance(stated, str):
        marks = {name: torch.ones(1) for name in ("v_pred", "ztsnr") if name in stated}
        metadata = {"modelspec.prediction_type": "epsilon"} if "epsilon" in stated else None
        save_file({"w": torch.ones(1)} | marks, place, metadata)
    else:
        (place / "scheduler").mkdir(parents=True)
        (place / "scheduler" / "scheduler_config.json").write_text(json.dumps(stated), encoding="utf-8")
    assert file_facts.objective_of(str(place)) == (objective, rescaled)
    warned = []
    for own in ("epsilon", "v-prediction", "rectified-flow"):
        caplog.clear()
        build._compare_objective(SimpleNamespace(objective=SimpleNamespace(name=own)), place)
        warned += [own] * len([one for one in caplog.records if one.levelname == "WARNING"])
    assert warned == [own for own in ("epsilon", "v-prediction") if objective not in (None, own)]
