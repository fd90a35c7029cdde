"""A file that is damaged, cut, hostile or of another kind ends in a sentence, and writes nothing; `info` tells what is in it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lora_files import SHAPES, loha, lora, random
from refused import refused
from safetensors.torch import load, load_file, save, save_file
from torch import Tensor

from reelworks.annexes.lora import apply, convert, info, merge, resize
from reelworks.annexes.lora.request import (
    ApplyLorasRequest,
    ConvertLoraRequest,
    LoraInfoRequest,
    MergeLorasRequest,
    ResizeLoraRequest,
)
from reelworks.core import storage
from reelworks.core.errors import UserError
from reelworks.models.adapters.key_mapping import METADATA

FIRST = "diffusion_model.blocks.0.self_attn.q"


def tools(path: Path, target: Path) -> dict[str, Callable[[], object]]:
    """Each verb that reads a file of updates."""
    base = path.with_name("base.safetensors")
    save_file({f"{layer}.weight": torch.zeros(shape) for layer, shape in SHAPES.items()}, base)
    model = "wan-tiny"
    return {
        "info": lambda: info.info(LoraInfoRequest(file=path, model=model)),
        "convert": lambda: convert.convert(ConvertLoraRequest(file=path, output=target, to="kohya", model=model)),
        "merge": lambda: merge.merge(MergeLorasRequest(files=[str(path)], output=target)),
        "resize": lambda: resize.resize(ResizeLoraRequest(file=path, output=target, rank=1)),
        "apply": lambda: apply.apply(ApplyLorasRequest(base=base, files=[str(path)], output=target.with_suffix(""))),
    }


def changed(**tensors: Tensor) -> Callable[[Path], None]:
    """Write a LoRA in which some tensors of the first layer are others."""

    def write(path: Path) -> None:
        lora(path)
        save_file(
            load(path.read_bytes()) | {f"{FIRST}.{name.replace('__', '.')}": value for name, value in tensors.items()},
            path,
        )

    return write


def with_header(**fields: Any) -> Callable[[Path], None]:
    """Write a LoRA with settings of peft in its header."""

    def write(path: Path) -> None:
        lora(path, header={METADATA: json.dumps(fields)})

    return write


def half_of_its_tensors(path: Path) -> None:
    lora(path)
    save_file({key: value for key, value in load(path.read_bytes()).items() if "lora_A" in key}, path)


def twice(path: Path) -> None:
    lora(path)
    tensors = load(path.read_bytes())
    save_file(tensors | {key.replace("diffusion_model", "unet"): value.clone() for key, value in tensors.items()}, path)


def cut(path: Path) -> None:
    lora(path)
    os.truncate(path, path.stat().st_size - 40)


def cut_in_its_header(path: Path) -> None:
    lora(path)
    os.truncate(path, 100)


def with_nested_header(path: Path) -> None:
    text = b"[" * 100_000
    path.write_bytes(len(text).to_bytes(8, "little") + text)


def pickled(path: Path) -> None:
    torch.save({f"{FIRST}.lora_A.weight": torch.zeros(1, 8)}, path)


# Files that cannot be opened at all, and those that can, which `info` tells of.
Bad = dict[str, tuple[Callable[[Path], object], str, str]]
UNREADABLE: Bad = {
    "truncated": (cut, "weights-unreadable", "truncated"),
    "truncated in its header": (cut_in_its_header, "weights-unreadable", "truncated within it"),
    "empty": (lambda path: path.touch(), "weights-unreadable", "no header"),
    "text": (lambda path: path.write_text("hello " * 100, encoding="utf-8"), "weights-unreadable", "no header"),
    "nested": (with_nested_header, "weights-unreadable", ""),
    "a pickle": (pickled, "weights-unreadable", "no header"),
    "a pointer": (
        lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid", encoding="utf-8"),
        "weights-unreadable",
        "git lfs",
    ),
    "GGUF": (lambda path: path.write_bytes(b"GGUF" + bytes(99)), "weights-unreadable", "GGUF"),
    "a folder": (lambda path: path.mkdir(), "weights-folder-ambiguous", "none"),
    "a pipe": (lambda path: os.mkfifo(path), "weights-", ""),
    "missing": (lambda path: None, "weights-not-found", ""),
}
DAMAGED: Bad = {
    "no tensors": (lambda path: path.write_bytes(save({})), "lora-unreadable", "holds no tensors"),
    "NaN": (changed(lora_A__weight=torch.full((4, 8), torch.nan)), "lora-unreadable", "holds infinities, NaN"),
    "huge numbers": (changed(lora_A__weight=torch.full((4, 8), 1e38)), "lora-unreadable", "above 1e"),
    "a huge alpha": (changed(alpha=torch.tensor(1e30)), "lora-unreadable", "above 1e"),
    "rank 0": (
        changed(lora_A__weight=torch.zeros(0, 8), lora_B__weight=torch.zeros(12, 0)),
        "lora-unreadable",
        "rank 0",
    ),
    "other shapes": (changed(lora_B__weight=torch.zeros(12, 3)), "lora-unreadable", "do not belong together"),
    "whole numbers": (changed(lora_A__weight=torch.ones(4, 8, dtype=torch.int8)), "lora-unreadable", "whole numbers"),
    "an alpha of NaN": (changed(alpha=torch.tensor(torch.nan)), "lora-unreadable", "is no number"),
    "a layer twice": (twice, "lora-unreadable", "several updates of one layer"),
    "a text as alpha": (with_header(r=4, lora_alpha="x"), "lora-unreadable", "settings"),
    "a list as alpha": (with_header(r=4, lora_alpha=[1]), "lora-unreadable", "settings"),
    "a pattern": (
        with_header(r=4, lora_alpha=4, alpha_pattern={"(a+)+$": 2}),
        "lora-unreadable",
        "only names are read",
    ),
    "no settings": (lambda path: lora(path, header={METADATA: "[1]"}), "lora-unreadable", "header"),
}


@pytest.mark.parametrize("name", [*UNREADABLE, *DAMAGED])
def test_a_bad_file_is_refused_by_each_tool(tmp_path: Path, name: str) -> None:
    write, code, says = (UNREADABLE | DAMAGED)[name]
    path, target = tmp_path / "a.safetensors", tmp_path / "new" / "b.safetensors"
    write(path)
    asked = tools(path, target)
    if name in DAMAGED:
        told = info.info(LoraInfoRequest(file=path, model="wan-tiny")).result.notes
        assert any(re.search(says, note) for note in told), told
        del asked["info"]
    there = {*tmp_path.iterdir()}
    for ask in asked.values():
        with pytest.raises(UserError, match=f"(?s){says}") as caught:
            ask()
        assert any(caught.value.code.startswith(one) for one in code.split("|")), caught.value.code
        assert str(path) in str(caught.value) or caught.value.value == str(path)
        assert not [found for found in tmp_path.rglob("*") if found.is_file() and found not in there]


def test_updates_that_lack_a_part_are_left_out_and_refused_alone(tmp_path: Path) -> None:
    path, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    half_of_its_tensors(path)
    assert info.info(LoraInfoRequest(file=path)).others == {"tensors of updates that lack a part": 3}
    with refused("lora-unreadable", "file", says="lack a part: 3 tensors"):
        resize.resize(ResizeLoraRequest(file=path, output=target, rank=1))
    lora(path)
    alone = {f"diffusion_model.x.{end}": torch.ones(2, 2) for end in ("lora_mid.weight", "lokr_w1", "hada_w1_a")}
    for key, value in alone.items():
        save_file(load_file(path) | {key: value}, target)
        result = merge.merge(MergeLorasRequest(files=[str(target)], output=tmp_path / "c.safetensors", overwrite=True))
        assert result.notes == [f"{target}: left out: tensors of updates that lack a part × 1: {key}"]
        assert len(result.layers) == 3


@pytest.mark.slow
def test_full_weights_are_no_lora(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"text_model.encoder.layers.0.self_attn.q_proj.weight": torch.zeros(4, 4)}, path)
    with refused("not-a-lora", "file"):
        resize.resize(ResizeLoraRequest(file=path, output=tmp_path / "b.safetensors", rank=1))


@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename"])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, call: str) -> None:
    path, folder = tmp_path / "a.safetensors", tmp_path / "out"
    lora(path)
    folder.mkdir()
    (folder / "b.safetensors").write_text("former", encoding="utf-8")

    def full(what: str, place: Path) -> None:
        if what == call and place.parent == folder:
            raise OSError(28, os.strerror(28))

    request = ResizeLoraRequest(file=path, output=folder / "b.safetensors", rank=1, overwrite=True)
    with storage.guarded(full), refused("file-unwritable", "output", says="No space left"):
        resize.resize(request)
    assert [(each.name, each.read_text(encoding="utf-8")) for each in folder.iterdir()] == [("b.safetensors", "former")]


def test_an_output_that_is_there_is_kept_unless_asked_for(tmp_path: Path) -> None:
    """Also if it is the input, which may be replaced by its own result."""
    path = tmp_path / "a.safetensors"
    lora(path)
    before = path.read_bytes()
    for target, says in (
        (path, "exists already"),
        (tmp_path, "as .safetensors"),
        (tmp_path / "b.pt", "as .safetensors"),
    ):
        with refused("output-file-invalid", "output", says=says):
            resize.resize(ResizeLoraRequest(file=path, output=target, rank=1))
    assert path.read_bytes() == before
    resize.resize(ResizeLoraRequest(file=path, output=path, rank=1, overwrite=True))
    assert {value.shape[0] for key, value in load_file(path).items() if "lora_A" in key} == {1}
    assert [each.name for each in tmp_path.iterdir()] == ["a.safetensors"]


def test_numbers_that_a_dtype_cannot_hold_are_refused(tmp_path: Path) -> None:
    path, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    changed(lora_B__weight=1e6 * random(12, 4, seed=0))(path)
    with refused("dtype-too-narrow", "dtype", says="blocks.0.self_attn.q"):
        merge.merge(MergeLorasRequest(files=[f"{path}=1e6"], output=target, dtype="float16"))
    assert not target.exists()


def test_layers_of_several_dtypes_keep_theirs(tmp_path: Path) -> None:
    path, target = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    loha(path)
    lora(target, {"other": (6, 5)}, dtype=torch.bfloat16)
    tensors = {key: value.double() if "ffn" in key else value for key, value in load(path.read_bytes()).items()}
    save_file(tensors | load_file(target), path)
    resize.resize(ResizeLoraRequest(file=path, output=target, rank=1, overwrite=True))
    dtypes = {key.partition(".lora_")[0].rpartition(".")[2]: value.dtype for key, value in load_file(target).items()}
    assert dtypes == {"q": torch.float32, "0": torch.float32, "o": torch.float32, "other": torch.bfloat16}
