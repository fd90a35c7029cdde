"""Every argument of the library is checked, and every mistake is told with the argument's name."""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import errors_page
import numpy as np
import pytest
import torch
from refused import refused
from torch.nn import functional

import reelworks as rw
from reelworks.core import words
from reelworks.core.errors import UserError
from reelworks.data.buckets.config import BucketEntryConfig, BucketsConfig
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.loader.data_spec import DataSpec
from reelworks.data.media.config import DataConfig
from reelworks.data.schedule.cost import CostConfig
from reelworks.inference.generate.export_run import export
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.testing import sample_catalog, sample_dataset, sample_folder
from reelworks.training.loop.trainer import train

GEOMETRY = rw.Geometry((4, 8, 8), (1, 2, 2))
ENTRY = rw.BucketEntry("64px", num_frames=[1, 5], batch_size=[4, 2])
JUNK = [
    None,
    True,
    0,
    -1,
    1.5,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "junk",
    "x" * 300,  # more than a name of a file may have
    b"x",
    [],
    [-1],
    {},
    {"a": 1},
    object(),
    print,
]


def calls(tmp_path: Path) -> dict[Callable[..., Any], dict[str, Any]]:
    """Public functions and classes, with right arguments where they are needed."""
    return {
        rw.Catalog.open: {"path": sample_catalog().path},
        rw.Catalog.scan: {"folders": sample_folder(), "to": tmp_path / "catalog", "workers": 1},
        rw.BucketEntry: {"resolution": "64px", "num_frames": 1},
        rw.BucketTable.from_entries: {"entries": [ENTRY], "geometry": GEOMETRY},
        rw.Geometry: {"stride": (4, 8, 8), "patch": (1, 2, 2)},
        rw.Dataset: {"catalog": sample_catalog(), "table": sample_dataset().table},
        DataSpec: {"datasets": sample_dataset().spec.datasets},
        DatasetConfig: {"path": "footage"},
        DataConfig: {},
        CostConfig: {},
        rw.Loader: {"dataset": sample_dataset()},
        rw.plan: {"dataset": sample_dataset()},
        rw.CheckpointStore: {"root": tmp_path / "checkpoints"},
        rw.Retention: {},
        rw.KeepBest: {},
        rw.load_model: {"source": tmp_path / "nothing"},
        export: {"source": tmp_path / "nothing", "target": tmp_path / "x.safetensors"},
        rw.check_attention: {"step": lambda: functional.scaled_dot_product_attention(*[torch.zeros(1, 1, 2, 2)] * 3)},
        train: {"recipe": tmp_path / "nothing.toml"},
        (loader := rw.Loader(sample_dataset())).restart: {},
        loader.load_state_dict: {"state": loader.state_dict()},
        (store := rw.CheckpointStore(tmp_path / "states")).save: {"step": 1, "state": {"a": 1}},
        store.load: {"step": 1, "state": {"a": 1}},
        store.load_latest: {"state": {"a": 1}},
        sample_dataset().plan_spec: {"micro_batches_per_step": 2, "same_bucket_run": 2},
    }


def arguments_of(function: Callable[..., Any]) -> list[str]:
    fields = getattr(function, "model_fields", None)
    names = list(fields or inspect.signature(function).parameters)
    return [name for name in names if name not in ("settings", "_plans")]


def test_junk_in_any_argument_is_taken_or_told_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never an AttributeError or TypeError from within, nor the name of another argument."""
    monkeypatch.chdir(tmp_path)  # where "junk" is a path
    tried, wrong = 0, []
    for function, right in calls(tmp_path).items():
        for name in arguments_of(function):
            for junk in JUNK:
                if function is rw.Catalog.scan and name == "workers" and junk in (0, None):
                    continue  # a process for each core
                tried += 1
                told = f"{function.__qualname__}({name}={junk!r})"
                try:
                    function(**{**right, name: junk})
                except UserError as error:
                    nothing_there = function in (rw.load_model, export, train) and error.code != "argument-invalid"
                    named = name in (error.field or error.problem).replace(".", " ").replace(",", " ").split()
                    if not nothing_there and not named:
                        wrong.append(f"{told}: {error}")
                    if len(str(error)) > 600:
                        wrong.append(f"{told}: too long: {error}")
                except Exception as error:
                    wrong.append(f"{told}: {error!r}")
    assert not wrong, "\n".join(wrong)
    assert tried > 1500


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: rw.Dataset("footage", sample_dataset().table), "catalog"),
        (lambda: rw.Loader(sample_dataset(), micro_batches_per_step=0), "micro_batches_per_step"),
        (lambda: rw.Loader(sample_dataset(), prefetch_bytes=-1), "prefetch_bytes"),
        (lambda: rw.Loader(sample_dataset(), decode_timeout=0), "decode_timeout"),
        (lambda: rw.Loader(sample_dataset(), decode_timeout=math.nan), "decode_timeout"),
        (lambda: rw.Loader(sample_dataset(), num_workers=-2), "num_workers"),
        (lambda: rw.Loader(sample_dataset(), num_workers=True), "num_workers"),
        (lambda: rw.Loader(sample_dataset(), device="gpu0"), "device"),
        (lambda: rw.Loader(sample_dataset(), device="xpu:7"), "device"),
        (lambda: rw.Loader(sample_dataset(), device="hpu"), "device"),
        pytest.param(
            lambda: rw.Loader(sample_dataset(), device="cuda"),
            "device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has it"),
        ),
        (lambda: rw.plan(sample_dataset(), micro_batches_per_step=0), "micro_batches_per_step"),
        (lambda: rw.plan(sample_catalog()), "dataset"),
        (lambda: rw.BucketEntry("64px", num_frames=0), "num_frames"),
        (lambda: rw.BucketEntry("64px", num_frames=1, keep_prob=1.5), "keep_prob"),
        (lambda: rw.BucketTable.from_entries([ENTRY], geometry=(4, 8, 8)), "geometry"),
        (lambda: rw.BucketTable.from_entries(ENTRY, geometry=GEOMETRY), "entries"),
        (lambda: rw.BucketTable.from_entries([], geometry=GEOMETRY), "entries"),
        (lambda: rw.BucketTable.from_entries([ENTRY], geometry=GEOMETRY, aspect_ratio=["1:1"]), "aspect_ratio"),
        (lambda: rw.BucketTable.from_entries([ENTRY], geometry=GEOMETRY, batch_size="auto"), "batch_size"),
        (lambda: rw.BucketTable.from_entries([ENTRY], geometry=GEOMETRY, max_crop=2.0), "max_crop"),
        (lambda: rw.Geometry((4, 8), (1, 2, 2)), "stride"),
        (lambda: rw.CheckpointStore("x", policy=3), "policy"),
        (lambda: rw.Retention(keep_last=0), "keep_last"),
        (lambda: rw.Retention(keep_within="2 fortnights"), "keep_within"),
        (lambda: rw.Retention(keep_best={"mode": "lowest"}), "keep_best.mode"),
        (lambda: rw.KeepBest(mode="lowest"), "mode"),
        (lambda: rw.DataSpec([], data=rw.DataConfig(fps="model")), "fps"),
        (lambda: rw.train("recipe.toml", overrides="a.b=1"), "overrides"),
        (lambda: rw.Catalog.open("nothing-here"), "path"),
    ],
)
def test_mistakes_that_were_taken_or_told_in_other_words(make: Callable[[], Any], field: str) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert caught.value.field == field


def read_below(folder: str, *owners: str) -> set[str]:
    """Attributes of objects of these names that modules below a folder read."""
    return {
        node.attr
        for file in (Path(rw.__file__).parent / folder).rglob("*.py")
        if file.name != "config.py"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[-1] in owners
    }


def test_a_key_of_data_config_is_used_by_the_library_or_refused() -> None:
    """Refused are those that only a recipe uses, whatever their value; nothing below `data/` reads them."""
    (footage,) = sample_dataset().spec.datasets
    read = read_below("data", "data", "config", "settings")
    read |= {"fps"} if "frame_rate" in read else set()
    for key, value in rw.DataConfig().model_dump().items():
        spec = {"datasets": (footage,), "data": rw.DataConfig(**{key: value})}
        if key in read:
            rw.DataSpec(**spec)
        else:
            with refused("key-of-recipes", key):
                rw.DataSpec(**spec)


def test_a_key_of_an_objective_is_used_by_it_or_refused() -> None:
    read = read_below("models/objectives", "config")
    for key, value in ObjectiveConfig().model_dump().items():
        if key in read:
            rw.objectives.RectifiedFlow(**{key: value})
        else:
            with refused("key-of-recipes", key):
                rw.objectives.RectifiedFlow(**{key: value})


def test_what_means_the_same_is_taken(tmp_path: Path) -> None:
    loader = rw.Loader(
        sample_dataset(), micro_batches_per_step=np.int64(2), decode_timeout=np.float32(3), record_to=str(tmp_path)
    )
    assert (type(loader.micro_batches_per_step), loader.micro_batches_per_step) == (int, 2)
    assert rw.Geometry([4, 8, 8], [1, 2, 2]) == GEOMETRY
    assert rw.BucketEntry("64px", num_frames=(1, 5)).num_frames == [1, 5]
    assert rw.DatasetConfig(path=tmp_path, lengths=(17, 33)) == rw.DatasetConfig(path=str(tmp_path), lengths=[17, 33])
    best = rw.Retention(keep_last=np.int64(2), keep_best={"metric": "a", "n": np.int64(2)}).keep_best
    assert best == rw.KeepBest(metric="a", n=2)
    assert rw.DataConfig(fps=np.float32(16), alpha_color=(0, 0, np.uint8(1))).alpha_color == [0, 0, 1]
    table = rw.BucketTable.from_entries([ENTRY], geometry=GEOMETRY, aspect_ratios=("1:1",), max_crop=np.float32(0.5))
    assert (table.config.aspect_ratios, table.max_crop) == (["1:1"], 0.5)


def test_objects_keep_their_places_when_a_program_goes_to_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Hydra does, and notebooks."""
    monkeypatch.chdir(tmp_path)
    catalog = rw.Catalog.scan(sample_folder(), to="catalog", workers=1)
    loader = rw.Loader(rw.Dataset(rw.Catalog.open("catalog"), sample_dataset().table), record_to="record")
    scanned = rw.Loader(rw.Dataset(catalog, sample_dataset().table))
    store = rw.CheckpointStore("checkpoints")
    store.save(1, {})
    (tmp_path / "other").mkdir()
    monkeypatch.chdir("other")
    for read in (loader, scanned):
        assert sum(int(m.is_valid.sum()) for step in read for m in step) == 12
    store.save(2, {})
    assert store.steps() == [1, 2]
    assert list(Path().iterdir()) == []
    assert (tmp_path / "record").is_dir()


def test_an_epoch_without_a_step_is_told_with_arguments() -> None:
    entry = rw.BucketEntry("2160p", num_frames=[65])
    dataset = rw.Dataset(sample_catalog(), rw.BucketTable.from_entries([entry], geometry=GEOMETRY))
    with refused(
        "empty-epoch", "entries", says=r"num_frames of BucketEntry .* BucketTable\.from_entries\(upscale=True\)"
    ):
        rw.Loader(dataset)
    with words.of_recipe(), refused("empty-epoch", "bucket", says=r"bucket\.num_frames .* buckets\.upscale = true"):
        rw.Loader(dataset)


def test_the_table_of_words_has_keys_that_exist() -> None:
    configs = {
        "bucket": BucketEntryConfig,
        "buckets": BucketsConfig,
        "checkpoints": rw.Retention,
        "cost": CostConfig,
        "data": DataConfig,
        "dataset": DatasetConfig,
        "objective": ObjectiveConfig,
    }
    for table, config in configs.items():
        assert set(words._TABLES[table]["keys"]) <= config.model_fields.keys()


LIBRARY = ("core", *(f"data/{r}" for r in ("catalog", "media", "schedule", "buckets", "loader", "checkpoint")))
NOT_OF_THE_LIBRARY = ("mirror", "propose.py")  # copies of runs, proposed entries
WORDS_OF_RECIPES = re.compile(
    r"(?<![\w/])(bucket|buckets|dataset|data|checkpoints|validation|train|cost|sound|autoencoder)\.[a-z_]+\b(?! of)"
    r"|(?<![\w-])--[a-z]|\[\[|the recipe|\brecipe's"
)

COMMAND = re.compile(r"`reelworks [^`]*`")  # to be typed in a shell


def sentences() -> Iterator[tuple[Path, errors_page.Sentence]]:
    for room in LIBRARY:
        for file in sorted((errors_page.SOURCE / room).rglob("*.py")):
            if not set(NOT_OF_THE_LIBRARY) & set(file.parts):
                for sentence in errors_page._sentences(ast.parse(file.read_text(encoding="utf-8")), {}):
                    yield file.relative_to(errors_page.SOURCE), sentence


def test_no_sentence_that_the_library_can_meet_speaks_of_recipes() -> None:
    """All sentences of the rooms that it is made of, as they are told to its callers."""
    found = list(sentences())
    assert len(found) > 80
    for file, sentence in found:
        for text in (sentence.problem, sentence.remedy):
            told = words.text_of(text)
            assert not WORDS_OF_RECIPES.search(COMMAND.sub("", told)), f"{file} {sentence.code}: {told}"
            assert words.text_of(told) == told


@pytest.mark.parametrize("name", ["flow", "ddim", "iddpm"])
def test_a_sampler_with_guidance_needs_a_model_without_the_condition(name: str) -> None:
    with refused("argument-invalid", "guidance_scale", says="unconditional"):
        getattr(rw.samplers, name)(lambda z, t: z, torch.zeros(1, 2, 1, 2, 2), guidance_scale=2.0)
