"""What `reelworks lora` prints: one JSON value of a fixed shape, or lines; and what `info` tells of a file."""

from __future__ import annotations

import json
import random as random_numbers
from pathlib import Path
from typing import Any

import diffusers_readers as readers
import pytest
import torch
from lora_files import SHAPES, loha, lokr, lora, random
from safetensors.torch import load, load_file, save_file
from test_lora_rewriting import exported
from test_run_average import LORA, run_of, trajectory
from typer.testing import CliRunner

from reelworks.annexes.lora import apply, convert, info, resize
from reelworks.annexes.lora.request import (
    ApplyLorasRequest,
    ConvertLoraRequest,
    LoraInfoRequest,
    ResizeLoraRequest,
    WeightedFile,
)
from reelworks.commands.main import app
from reelworks.models import registry
from reelworks.models.adapters.config import LoraConfig
from reelworks.testing import contract

RESULT = {"files", "convention", "layers", "norm", "relative_error", "notes"}
MORE = {
    "info": {
        *("bytes", "types", "ranks", "dtypes", "others", "models", "fitting", "text_encoder_layers", "readers"),
        "metadata",
    },
    "extract": {"model", "equal", "not_held", "difference", "relative_error_in_all"},
    "average": {"averaged", "sigma_rel", "checkpoints", "profile_error"},
}


def said(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["lora", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


def commands(folder: Path) -> dict[str, list[object]]:
    """The arguments of each verb, with files for them."""
    one, two, out = folder / "a.safetensors", folder / "b.safetensors", folder / "out.safetensors"
    lora(one, alpha=2.0)
    lora(two, seed=30)
    base, tuned = folder / "base.safetensors", folder / "tuned.safetensors"
    weights = {f"{layer}.weight": random(*shape, seed=1) for layer, shape in SHAPES.items()}
    save_file(weights, base)
    save_file({key: value + 0.1 for key, value in weights.items()}, tuned)
    layer, small = "blocks.0.attn1.to_q", (6, 4)
    ways = {f"{layer}.lora_{side}.default.weight": trajectory(2, 2, seed=0) for side in "AB"}
    run = run_of(folder / "run", ways, [100, 300], LORA)
    named = folder / "named.safetensors"
    lora(named, {"blocks.0.self_attn.q": small}, prefix="lora_unet_", matrices=("lora_down", "lora_up"), alpha=4.0)
    model = ["--model", "wan-tiny"]
    return {
        "info": ["info", one, *model],
        "convert": ["convert", named, "--to", "diffusers", "-o", out, *model],
        "merge": ["merge", f"{one}=0.7", f"{two}=-0.5", "-o", out],
        "resize": ["resize", one, "--rank", 2, "-o", out],
        "extract": ["extract", base, tuned, "--rank", 1, "-o", out, *model],
        "apply": ["apply", base, f"{one}=0.5", two, "-o", folder / "merged"],
        "average": ["average", run.path, "-o", out, "--sigma-rel", 0.1],
    }


def test_each_verb_answers_in_one_shape(tmp_path: Path) -> None:
    """With --json in keys that are the same for all, and without it in lines that name the written files."""
    for verb, arguments in commands(tmp_path).items():
        more = [] if verb == "info" else ["--overwrite"]
        answer = json.loads(said(*arguments, *more, "--json"))
        assert answer.keys() == RESULT | MORE.get(verb, set())
        assert {*answer["layers"][0]} == {"layer", "type", "rank", "norm", "relative_error"}
        assert answer["files"]
        assert all(Path(file).is_file() for file in answer["files"])
        lines = said(*arguments, *more)
        assert all(file in lines for file in answer["files"])
        assert ("relative error" in lines) == (verb != "info")
        assert answer["layers"][0]["layer"][:20] in said(*arguments, *more, "--layers")


def test_a_file_is_described(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    updates = lora(
        path, ranks={layer: 2 + i for i, layer in enumerate(SHAPES)}, header={"title": "x"}, dtype=torch.bfloat16
    )
    found = info.info(LoraInfoRequest(file=path, model="wan-tiny"))
    assert (found.result.convention, found.types, found.dtypes) == ("comfyui", {"lora": 3}, {"bfloat16": 6})
    assert found.ranks == {"2": 1, "3": 1, "4": 1}
    assert (found.models, found.fitting) == (["wan-tiny"], 3)
    assert (found.metadata, found.bytes) == ({"title": "x"}, path.stat().st_size)
    assert (found.readers, found.others) == ({"diffusers": 3, "Forge Neo": 3, "ComfyUI": 3}, {})
    for layer in found.result.layers:
        update = updates[layer.layer.removeprefix("diffusion_model.")]
        assert layer.norm is not None
        assert layer.norm == pytest.approx(float(update.norm()), rel=1e-4)


def test_a_number_at_the_end_of_a_file_s_name_is_no_weight(tmp_path: Path) -> None:
    """Where a file has that name; otherwise it is the number that its update is multiplied by."""
    text = f"{tmp_path}/epoch=7"
    assert WeightedFile.parse(text) == (f"{tmp_path}/epoch", 7.0)
    Path(text).touch()
    assert WeightedFile.parse(text) == (text, 1.0)
    assert WeightedFile.parse(f"{text}=-0.5") == (text, -0.5)


@pytest.mark.parametrize(
    ("settings", "format", "programs"),
    [
        (LoraConfig(rank=2), "diffusers", ["diffusers", "peft (inject_adapter_in_model)"]),
        (LoraConfig(rank=2), "kohya", ["musubi-tuner", "Forge Neo", "ComfyUI"]),
        (LoraConfig(rank=2, dora=True), "diffusers", ["diffusers", "peft (inject_adapter_in_model)"]),
        (
            LoraConfig(type="lokr", rank=2),
            "diffusers",
            ["diffusers (load_lora_adapter)", "peft (inject_adapter_in_model)"],
        ),
        (LoraConfig(type="oft", block_size=4), "diffusers", ["peft (inject_adapter_in_model)"]),
    ],
)
def test_programs_that_read_a_file_are_named(
    tmp_path: Path, settings: LoraConfig, format: str, programs: list[str]
) -> None:
    path = exported(tmp_path / "a.safetensors", "wan-tiny", settings, format)
    found = info.info(LoraInfoRequest(file=path))  # the header names the model
    count = len(found.result.layers)
    assert (found.readers, found.models, found.fitting) == (dict.fromkeys(programs, count), ["wan-tiny"], count)


def test_a_dora_of_comfyui_s_names_has_no_reader(tmp_path: Path) -> None:
    """ComfyUI computes other rows than were trained."""
    path = tmp_path / "a.safetensors"
    lora(path)
    lengths = {f"diffusion_model.{layer}.dora_scale": torch.ones(rows, 1) for layer, (rows, _) in SHAPES.items()}
    save_file(load(path.read_bytes()) | lengths, path)
    found = info.info(LoraInfoRequest(file=path, model="wan-tiny"))
    assert (found.readers, found.result.norm) == ({}, None)


@pytest.mark.slow
def test_the_model_of_a_file_without_a_header_is_found_by_its_layers(tmp_path: Path) -> None:
    """Of Wan 14B by names and shapes, among all that are known; and of files of other types."""
    path = tmp_path / "a.safetensors"
    lora(path, {"blocks.39.self_attn.q": (5120, 5120), "blocks.0.ffn.0": (13824, 5120)}, ranks=1)
    found = info.info(LoraInfoRequest(file=path))
    assert found.fitting == 2
    assert {"wan-2.1-14b", "wan-2.2-14b"} <= {*found.models}
    assert not {"wan-2.1-1.3b", "wan-2.2-5b"} & {*found.models}
    for write in (loha, lokr):
        write(path)
        assert info.info(LoraInfoRequest(file=path)).fitting < 3


def test_a_header_that_names_another_kind_of_model_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though some of the layers are its own too."""
    few = {name: registry.PRESETS[name] for name in ("wan-tiny", "wan-i2v-tiny")}
    monkeypatch.setattr(registry, "PRESETS", few)  # all are built in some seconds
    path = tmp_path / "a.safetensors"
    settings = LoraConfig(rank=1, targets=["to_q", "add_k_proj"])
    readers.written(random_numbers.Random(0), "wan-i2v-tiny", settings, "comfyui", path)
    save_file(load(path.read_bytes()), path, metadata={"modelspec.architecture": "wan-tiny/lora"})
    found = info.info(LoraInfoRequest(file=path))
    assert (found.models, found.fitting) == (["wan-i2v-tiny"], len(found.result.layers))


@pytest.mark.slow
@pytest.mark.parametrize("through", ["adapter", "pipeline"])
@pytest.mark.parametrize("name", ["wan-tiny", "flux-tiny"])
def test_diffusers_reads_a_file_of_several_ranks_as_it_is_meant(tmp_path: Path, name: str, through: str) -> None:
    """With its own code: what is added to the weights is what the file holds, up to rounding."""
    settings = LoraConfig(rank=5, alpha=2.3, targets="blocks")
    source, small, there = (tmp_path / f"{letter}.safetensors" for letter in "abc")
    readers.written(random_numbers.Random(0), name, settings, "kohya", source)
    resize.resize(ResizeLoraRequest(file=source, output=small, keep=0.8))
    convert.convert(ConvertLoraRequest(file=small, output=there, to="diffusers", model=name))
    assert len({value.shape[0] for key, value in load_file(there).items() if "lora_A" in key}) > 1
    base, out = tmp_path / "base.safetensors", tmp_path / "out"
    save_file(contract.build(name).module.state_dict(), base)
    apply.apply(ApplyLorasRequest(base=base, files=[str(small)], output=out, model=name))
    if through == "adapter":
        assert readers.misread(_through_adapter, name, there, load_file(out / "base.safetensors")) is None
    else:
        assert readers.misread(readers.through_pipeline, name, there, load_file(out / "base.safetensors")) is None


def _through_adapter(_: str, module: Any, path: Path, part: str) -> None:
    readers.through_adapter(module, path, part)
