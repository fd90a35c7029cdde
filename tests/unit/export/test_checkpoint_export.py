"""What is exported is what was trained: the model's own keys and values, in a file that is whole or absent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from refused import refused
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from reelworks.core import storage
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import safetensors_header
from reelworks.data.checkpoint import save as commit
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run.folder import RunFolder
from reelworks.inference.generate import export_run
from reelworks.models.adapters import inject
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.export import export, exports_folder, safetensors_file
from reelworks.models.export.config import ExportsConfig
from reelworks.models.export.lora import lora_file_of
from reelworks.models.storage import weights as weight_files
from reelworks.testing import contract

RECIPE = '[model]\nname = "tiny"\nlicense = "apache-2.0"\n'


class Model(nn.Module):
    """Weights of two dtypes, one of them not trained, and buffers that are no floating-point numbers."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.blocks = nn.ModuleList(nn.Linear(3, 5) for _ in range(3))
        self.scale = nn.Parameter(torch.tensor(2.0 + seed))
        self.frozen = nn.Parameter(torch.randn(7).bfloat16(), requires_grad=False)
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("count", torch.arange(5 + seed)[:5])
        self.register_buffer("empty", torch.zeros(0, 3))


def state(model: Model) -> dict[str, Any]:
    ema = {name: p.detach() + 1 for name, p in model.named_parameters() if p.requires_grad}
    return {"model": model.state_dict(), "ema": ema, "optimizer": {"state": {"x": torch.zeros(50)}}}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.keep_recipe(RECIPE)
    return folder


@pytest.fixture
def checkpoint(run: RunFolder) -> Path:
    return commit.save(CheckpointFolder(run.checkpoints_folder), 40, state(Model())).info.path


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, "pt") as file:
        return file.metadata()


def about(run: RunFolder) -> dict[str, str]:
    return export.describe_run(run_id=run.info().id, recipe=run.recipe_file, step=40, epoch=3)


@pytest.mark.parametrize("weights", ["ema", "model"])
def test_an_export_loads_into_the_model_and_equals_it(
    run: RunFolder, checkpoint: Path, tmp_path: Path, weights: Any
) -> None:
    target = tmp_path / "out.safetensors"
    written = export.export_checkpoint(checkpoint, target, weights=weights, dtype="float32", about=about(run))
    assert written == [target]
    loaded, saved = Model(seed=1), state(Model())
    loaded.load_state_dict(weight_files.read(str(target)), strict=True)
    expected = {**saved["model"], **(saved["ema"] if weights == "ema" else {})}
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, expected[name]), name
    names = {p.name for p in run.recipes_folder.iterdir()}
    told = metadata(target)
    assert f"recipe-{told.pop('recipe_digest')[:8]}.toml" in names
    assert told.pop("reelworks")
    assert told == {
        "format": "pt", "run_id": run.info().id, "model": "tiny", "license": "apache-2.0",
        "step": "40", "epoch": "3", "weights": weights, "dtype": "float32",
    }  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_live_state_gives_the_same_file_as_its_checkpoint(
    run: RunFolder, checkpoint: Path, tmp_path: Path, dtype: Any
) -> None:
    given = {"weights": "ema", "dtype": dtype, "about": about(run)}
    export.export_checkpoint(checkpoint, tmp_path / "a.safetensors", **given)
    export.export_weights(state(Model()), tmp_path / "b.safetensors", **given)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    loaded = load_file(tmp_path / "a.safetensors")
    assert {v.dtype for v in loaded.values() if v.is_floating_point()} == {export.DTYPES[dtype]}
    assert (loaded["mask"].dtype, loaded["count"].dtype) == (torch.bool, torch.int64)


def test_large_exports_are_shards_with_an_index_as_published_ones_are(tmp_path: Path) -> None:
    model = Model().state_dict()
    entries = safetensors_header.ordered(
        safetensors_header.TensorRange(n, v.dtype, tuple(v.shape)) for n, v in model.items()
    )
    target = tmp_path / "model.safetensors"
    written = safetensors_file.write(target, entries, [model[e.name] for e in entries], {"step": "1"}, shard_bytes=100)
    count = len(written) - 1
    assert count > 2
    assert written[0].name == f"model-00001-of-{count:05d}.safetensors"
    assert written[-1].name == "model.safetensors.index.json"
    index = json.loads(written[-1].read_text(encoding="utf-8"))
    assert index["metadata"] == {"step": "1", "total_size": sum(v.nbytes for v in model.values())}
    assert {p.name for p in tmp_path.iterdir()} == {p.name for p in written}
    loaded = weight_files.read(str(tmp_path))
    assert loaded.keys() == model.keys() == index["weight_map"].keys()
    assert all(torch.equal(loaded[name], value) for name, value in model.items())


def test_an_index_never_names_a_shard_that_is_not_there_yet(tmp_path: Path) -> None:
    """Wherever the writing of the files ends: a reader takes an index for a whole export."""
    model = Model().state_dict()
    entries = safetensors_header.ordered(
        safetensors_header.TensorRange(n, v.dtype, tuple(v.shape)) for n, v in model.items()
    )
    incomplete = []

    def look(call: str, path: Path) -> None:
        for file in tmp_path.glob("*.index.json"):
            named = set(json.loads(file.read_text(encoding="utf-8"))["weight_map"].values())
            incomplete.extend(named - {p.name for p in tmp_path.iterdir()})

    with storage.guarded(look):
        written = safetensors_file.write(
            tmp_path / "w.safetensors", entries, [model[e.name] for e in entries], {}, shard_bytes=100
        )
    assert (len(written) > 3, incomplete) == (True, [])


def test_each_tensor_starts_at_a_multiple_of_its_width(tmp_path: Path) -> None:
    """So that readers may map it instead of copying, whatever odd sizes stand before it."""
    tensors = {"a": torch.ones(3, dtype=torch.bool), "b": torch.ones(5).bfloat16(), "c": torch.ones(3)}
    entries = safetensors_header.ordered(
        safetensors_header.TensorRange(n, v.dtype, tuple(v.shape)) for n, v in tensors.items()
    )
    (path,) = safetensors_file.write(tmp_path / "w.safetensors", entries, [tensors[e.name] for e in entries], {})
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    starts = {name: start + header[name]["data_offsets"][0] for name in tensors}
    assert all(starts[name] % value.element_size() == 0 for name, value in tensors.items())
    assert start % 8 == 0


def test_float16_refuses_what_would_become_infinite(run: RunFolder, tmp_path: Path) -> None:
    """By the tensor's name; what was infinite before is the model's own affair, and bfloat16 takes the rest."""
    model = Model()
    with torch.no_grad():
        model.blocks[1].weight[2, 1] = 70_000.0
        model.scale.fill_(float("-inf"))
    path = commit.save(CheckpointFolder(run.checkpoints_folder), 50, state(model)).info.path
    target = tmp_path / "out.safetensors"
    given = {"weights": "model", "about": {}}
    with refused("dtype-too-narrow", "dtype", says=r"blocks\.1\.weight has values up to 7e\+04"):
        export.export_checkpoint(path, target, dtype="float16", **given)
    with refused("dtype-too-narrow", "dtype", says=r"blocks\.1\.weight"):
        export.export_weights(state(model), target, dtype="float16", **given)
    assert [p.name for p in tmp_path.iterdir()] == ["run"], "whole or absent"
    export.export_checkpoint(path, target, dtype="bfloat16", **given)
    assert load_file(target)["scale"] == float("-inf")


@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename"])
def test_a_failing_disk_leaves_what_was_there(run: RunFolder, checkpoint: Path, tmp_path: Path, call: str) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "w.safetensors").write_text("former", encoding="utf-8")

    def full(what: str, path: Path) -> None:
        if what == call and path.parent == folder:
            raise OSError(28, os.strerror(28))

    target, given = folder / "w.safetensors", {"weights": "ema", "dtype": "float32", "about": {}}
    for write in (
        lambda: export.export_checkpoint(checkpoint, target, **given),
        lambda: export.export_state_dict({"w": torch.ones(2)}, target, **given),
    ):
        with storage.guarded(full), pytest.raises(OSError, match="No space left"):
            write()
    assert [p.name for p in folder.iterdir()] == ["w.safetensors"]
    assert (folder / "w.safetensors").read_text(encoding="utf-8") == "former"


def test_a_full_disk_is_told_with_the_place_that_was_asked_for(
    run: RunFolder, checkpoint: Path, tmp_path: Path
) -> None:
    """That of the command, or the recipe's table, whose weights lie in the run."""

    def full(what: str, path: Path) -> None:
        if what == "write" and path.name.endswith(".tmp"):
            raise OSError(28, os.strerror(28))

    with storage.guarded(full):
        with refused("export-failed", "target", says="No space left") as error:
            export_run.export(checkpoint, tmp_path / "mine" / "w.safetensors")
        assert error.value.value == str(tmp_path / "mine" / "w.safetensors")
        assert error.value.remedy == "free disk space"
        with refused("export-failed", "exports", says="No space left") as error:
            exports_folder.write(run, checkpoint, ExportsConfig(weights="ema"), step=40, epoch=0)
        assert error.value.value == str(run.exports_folder)


def test_a_damaged_checkpoint_is_not_exported(checkpoint: Path, tmp_path: Path) -> None:
    shard = next((checkpoint / "tensors").glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with refused("checkpoint-bad", "checkpoint"):
        export.export_checkpoint(checkpoint, tmp_path / "w.safetensors", weights="ema", dtype="float32", about={})


def test_a_checkpoint_without_an_average_says_so(run: RunFolder, tmp_path: Path) -> None:
    path = commit.save(CheckpointFolder(run.checkpoints_folder), 60, {"model": Model().state_dict()}).info.path
    with refused("checkpoint-part-missing", "checkpoint", says="no averaged weights") as error:
        export.export_checkpoint(path, tmp_path / "w.safetensors", weights="ema", dtype="float32", about={})
    assert "--weights" in error.value.remedy


def test_targets_are_checked_before_anything_is_read(tmp_path: Path) -> None:
    export.require_free_file(tmp_path / "new" / "w.safetensors")
    (tmp_path / "w.safetensors").touch()
    (tmp_path / "v.safetensors.index.json").touch()
    for name, said in (("w.safetensors", "exists already"), ("v.safetensors", "exists already"), ("w.pt", "as .safet")):
        with pytest.raises(UserError, match=said):
            export.require_free_file(tmp_path / name)


def save(run: RunFolder, step: int, config: ExportsConfig, *, is_last: bool = False) -> Path | None:
    """A save as training makes it: the checkpoint, then the product."""
    values = {"model": {"w": torch.full((3,), float(step))}, "ema": {"w": torch.full((3,), -float(step))}}
    saved = commit.save(CheckpointFolder(run.checkpoints_folder), step, values)
    written = exports_folder.write(run, saved.info.path, config, step=step, epoch=0, is_last=is_last)
    assert len(written) <= 1
    return written[0] if written else None


def test_a_lora_is_written_in_each_convention_with_its_own_names(run: RunFolder) -> None:
    """Which its loaders read; not as the weights of a network."""
    run.keep_recipe('[model]\nname = "wan-tiny"\n[lora]\nrank = 2\ntargets = ["to_q"]\n')
    network = contract.build("wan-tiny")
    inject.inject(network, LoraConfig(rank=2, targets=["to_q"]), seed=0)
    weights = inject.weights(network.module)
    saved = commit.save(CheckpointFolder(run.checkpoints_folder), 10, {"model": weights}).info.path
    config = ExportsConfig(weights="model", formats=["diffusers", "kohya"], dtype="float32")
    names = []
    for path, format in zip(exports_folder.write(run, saved, config, step=10, epoch=0), config.formats, strict=True):
        asked = lora_file_of(run.recipe_file, format)
        assert asked is not None
        wanted, found = asked.content(weights), load_file(path)
        assert found.keys() == wanted.tensors.keys()
        assert all(torch.equal(found[name], value) for name, value in wanted.tensors.items())
        assert wanted.header.items() <= metadata(path).items()
        names.append(set(found))
    assert not set.intersection(*names)


def test_products_are_kept_by_their_own_rule(run: RunFolder, tmp_path: Path) -> None:
    """Foreign files are never touched, whatever they are called; nor what was exported by hand."""
    config = ExportsConfig(weights="ema", dtype="float32", keep_last=2)
    run.exports_folder.mkdir()
    foreign = [
        "notes.txt",
        "step-000000010-ema.safetensors.bak",
        "step-10-ema.safetensors",
        "step-000000005-model.safetensors",
    ]
    for name in foreign:
        (run.exports_folder / name).write_text("mine", encoding="utf-8")
    by_hand = run.exports_folder / "step-000000007-ema.safetensors"
    export.export_weights(
        {"model": {"w": torch.zeros(1)}, "ema": {}}, by_hand, weights="ema", dtype="float32", about=about(run)
    )
    (left := run.exports_folder / ".step-000000009-ema.safetensors.0123abcd.tmp").touch()
    os.utime(left, (0, 0))
    for step in (10, 20, 30, 40):
        path = save(run, step, config)
        assert path is not None
        assert torch.equal(load_file(path)["w"], torch.full((3,), -float(step)))
    names = {path.name for path in run.exports_folder.iterdir()}
    assert names == {*foreign, by_hand.name, "step-000000030-ema.safetensors", "step-000000040-ema.safetensors"}


@pytest.mark.parametrize(("lora", "free", "left"), [(True, 100, 5), (True, 99, 3), (False, 500, 3)])
def test_all_of_a_lora_stay_while_there_is_room(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lora: bool, free: int, left: int
) -> None:
    """They are small, and whoever compares previews wants the file of an earlier step."""
    monkeypatch.setattr(exports_folder.shutil, "disk_usage", lambda _: SimpleNamespace(total=10**12, free=free * 10**9))
    kept = exports_folder._kept(run.exports_folder, ExportsConfig().keep_last, is_lora=lora)
    assert (kept or 5) == left
    assert ("exports.keep_last" in caplog.text) == (lora and left == 3)
    config = ExportsConfig(weights="model")
    written = [save(run, step, config) for step in (10, 20, 30, 40)]
    assert [path.is_file() for path in written if path] == [False, True, True, True]


def test_going_back_never_costs_the_product_just_written(run: RunFolder) -> None:
    """Those of later steps, written before, are not newer: they neither count nor go until they are passed."""
    config = ExportsConfig(weights="ema", keep_last=1)
    kept = []
    for step in (40, 10, 20, 50):
        assert save(run, step, config) is not None
        kept.append(sorted(int(path.name[5:14]) for path in run.exports_folder.iterdir()))
    assert kept == [[40], [10, 40], [20, 40], [50]]


def test_products_of_shards_go_as_a_whole(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_file.write, "__defaults__", (8,))
    config = ExportsConfig(weights="model", keep_last=1)
    two = {"model": {"a": torch.zeros(4), "b": torch.ones(4)}, "ema": {}}
    for step in (10, 20):
        path = commit.save(CheckpointFolder(run.checkpoints_folder), step, two).info.path
        exports_folder.write(run, path, config, step=step, epoch=0)
    stem = "step-000000020-model"
    assert {p.name for p in run.exports_folder.iterdir()} == {
        f"{stem}-00001-of-00002.safetensors", f"{stem}-00002-of-00002.safetensors", f"{stem}.safetensors.index.json",
    }  # fmt: skip


@pytest.mark.parametrize("shard_bytes", [8, 100])
def test_a_product_is_written_again_exactly_if_it_is_not_whole_or_of_another_save(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, shard_bytes: int
) -> None:
    """As after a kill while it was written, or where the run went back and saved the same step again."""
    monkeypatch.setattr(safetensors_file.write, "__defaults__", (shard_bytes,))
    store, config = CheckpointFolder(run.checkpoints_folder), ExportsConfig(weights="model")

    def product(value: float) -> bool:
        values = {"model": {"a": torch.zeros(4), "b": torch.full((4,), value)}, "ema": {}}
        return bool(exports_folder.write(run, commit.save(store, 10, values).info.path, config, step=10, epoch=0))

    def values() -> list[float]:
        parts = [load_file(path) for path in run.exports_folder.glob("*.safetensors")]
        return next(part["b"] for part in parts if "b" in part).tolist()

    assert [product(1.0), product(1.0)] == [True, False]
    assert product(2.0)
    assert values() == [2.0] * 4
    last = sorted(run.exports_folder.iterdir(), key=lambda path: "index" in path.name)[-1]
    last.unlink()
    assert [product(2.0), product(2.0)] == [True, False]
    last.write_bytes(b"[")
    assert [product(2.0), product(2.0)] == [True, False]


def test_saves_of_a_branch_that_the_run_left_bring_no_product(run: RunFolder) -> None:
    config = ExportsConfig(weights="model", every_n_saves=3, keep_last=None)
    assert [step for step in (10, 20, 30, 40, 50) if save(run, step, config)] == [30]
    for step in (40, 50):
        CheckpointFolder(run.checkpoints_folder).set_aside(step, "abandoned: the run went back to step 30")
    assert [step for step in (33, 36, 39) if save(run, step, config)] == [39]


def test_products_come_with_each_so_many_th_save(run: RunFolder) -> None:
    """Whatever the steps of the saves are, and counted on through a restart; the last comes whatever the count."""
    config = ExportsConfig(weights="model", every_n_saves=3, keep_last=None)
    written = [step for step in (10, 20, 27, 30, 40, 50, 60) if save(run, step, config)]
    assert written == [27, 50]
    assert save(run, 70, ExportsConfig()) is None
    assert save(run, 80, config, is_last=True)


def test_weights_are_cast_and_counts_and_the_alphas_of_a_lora_are_not(tmp_path: Path) -> None:
    """257 is a rank that bfloat16 rounds to 256, and readers scale by rank and alpha."""
    state = {"a.weight": torch.tensor([1 / 3]), "a.alpha": torch.tensor(257.0), "count": torch.tensor([257])}
    export.export_state_dict(state, tmp_path / "a.safetensors", weights="model", dtype="bfloat16", about={})
    loaded = load_file(tmp_path / "a.safetensors")
    assert loaded["a.weight"].dtype == torch.bfloat16
    assert all(torch.equal(loaded[name], state[name]) for name in ("a.alpha", "count"))
