"""Clips with different numbers of sources, from folders to a trained model, live and stored."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import children
import examples
import numpy as np
import pytest
import tiny_recipe
import torch
from examples import training_example
from PIL import Image
from refused import refused
from typer.testing import CliRunner

from reelworks.commands.main import app
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.loader import prefetch
from reelworks.data.loader.step_source import StepSource
from reelworks.data.media.decode_pool import DecodePool
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.models.config import ModelConfig
from reelworks.models.text.hashed import HashedTextEncoder
from reelworks.training.assembly import build
from reelworks.training.encoding import reachable, upkeep
from reelworks.training.encoding.encoders import CaptionCache
from reelworks.training.encoding.request_key import Keys
from reelworks.training.encoding.stored_batches import StoredLatents
from reelworks.training.precompute import encoding
from reelworks.training.recipe import dataset, recipe_file, validation
from reelworks.training.recipe.dataset import RecipeData

CLIPS, SECOND = 8, 5  # of the clips, the first ones have a second source


def grey(path: Path, value: int, size: tuple[int, int] = (32, 48)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), value, np.uint8)).save(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Edits of one or two pictures, and pictures of no source; the shade of a file is its number.

    The second picture of an edit has another aspect ratio, that of the first edit another one still.
    """
    root = tmp_path_factory.mktemp("edits")
    for i in range(CLIPS):
        grey(root / f"after/{i}.png", 10 * i)
        (root / f"after/{i}.txt").write_text(f"edit {i}", encoding="utf-8")
        grey(root / f"person/{i}.png", 100 + 10 * i)
        if i < SECOND:
            grey(root / f"coat/{i}.jpg", 200 + 10 * i, (48, 32) if i else (64, 64))
        grey(root / f"plain/{i}.png", 5 * i)
        (root / f"plain/{i}.txt").write_text(f"picture {i}", encoding="utf-8")
    return root


@pytest.fixture
def recipe(folder: Path, tmp_path: Path) -> Any:
    def make(name: str, **changes: Any) -> dict[str, Any]:
        edits = {"path": f"{folder}/after", "source": [f"{folder}/person", f"{folder}/coat"], "min_sources": 1}
        held_out = {"split": 0.2, "every_steps": 5, "timesteps": [500.0]}
        datasets = (edits, {"path": f"{folder}/plain"})
        return tiny_recipe.of_family("flux2-tiny", tmp_path / name, *datasets, validation=held_out) | changes

    return make


def test_a_micro_batch_has_one_layout_of_sources_and_every_clip_is_trained(recipe: Any) -> None:
    """Each clip's latents are those of its own sources, in the order of the folders, in about the area of the clip.

    So they are if they are to come from a store that has none of them yet.
    """
    parsed = recipe_file.parse(recipe("run", validation={"split": 0.0}))
    dataset.scan_recipe(parsed)
    data, encoder = RecipeData.open(parsed), build.encoder(parsed, torch.device("cpu"))
    plan, counts = data.plan(data.plan_spec(1, 1), 0), dict[int, int]()
    assert plan.planned == 2 * CLIPS
    pool = DecodePool(0, 60.0)
    try:
        work = [
            each
            for plan_step in range(plan.num_steps)
            for each in StepSource(data, 0, 1).requests_of_step(plan, 0, plan_step)
        ]
        stored = encoding.open_store(data)
        unstored = examples.batch_encoder(encoder, stored).read(work, pool, 1 << 30)
        for batch, missing in zip(prefetch.read_ahead(work, pool), unstored, strict=True):
            made = training_example(batch, encoder, parsed.objective, seed=1).inputs.sources
            again = training_example(missing, encoder, parsed.objective, seed=1, stored=stored).inputs.sources
            assert all(torch.equal(a, b) for a, b in zip(made, again, strict=True))
            counts[len(made)] = counts.get(len(made), 0) + len(batch.captions)
            for i, caption in enumerate(batch.captions):
                number = int(caption.split()[1])
                sizes = ((32, 48), (48, 32) if number else (40, 40))
                for first, size, source in zip((100, 200), sizes, made, strict=False):
                    shade = torch.full((1, 1, *size, 3), first + 10 * number, dtype=torch.uint8)
                    torch.testing.assert_close(source[i : i + 1], encoder.latents(shade), atol=0.03, rtol=0)
    finally:
        pool.close()
    assert counts == {0: CLIPS, 1: CLIPS - SECOND, 2: SECOND}


def test_a_source_of_another_shape_shows_its_middle_wherever_its_clip_is_cropped(recipe: Any) -> None:
    *_, work = opened(recipe("run", data={"crop": "random", "num_workers": 0}))
    clips = [request for each in work for request in each.requests]
    sources = [source for each in work for several in each.companions.values() for source in several if source]
    assert all(clip.crop_draw != (0.5, 0.5) for clip in clips)
    others = [source for source in sources if source.shape != clips[0].shape]
    assert 0 < len(others) < len(sources)
    assert {source.crop_draw for source in others} == {(0.5, 0.5)}
    assert {source.crop_draw for source in sources if source not in others} <= {clip.crop_draw for clip in clips}


class Looking(HashedTextEncoder):
    """Embeds the shades of pictures after the words of a caption."""

    sees_pictures = True

    def encode(self, captions: Any, pictures: Any = ()) -> Any:
        return super().encode([f"{captions[0]} {[int(each.float().mean()) for each in pictures]}"])


def opened(values: Any) -> tuple[RecipeData, Any, StoredLatents, list[Any]]:
    """The data, encoders of which that of captions looks at pictures, an empty store, and the requests of an epoch."""
    parsed = recipe_file.parse(values | {"validation": {"split": 0.0}})
    dataset.scan_recipe(parsed)
    data, encoders = RecipeData.open(parsed), build.encoder(parsed, torch.device("cpu"))
    made = encoding.open_store(data)
    stored = StoredLatents(made.store, Keys(data, replace(made.keys.ids, text_sees_pictures=True)))
    plan, source = data.plan(data.plan_spec(1, 1), 0), StepSource(data, 0, 1)
    work = [each for plan_step in range(plan.num_steps) for each in source.requests_of_step(plan, 0, plan_step)]
    return data, replace(encoders, text_encoder=Looking(parsed.text_encoder)), stored, work


def test_embeddings_that_see_pictures_are_the_live_ones_whatever_is_stored(recipe: Any) -> None:
    """Of dropped captions too, whose embeddings are missing where all else is stored, and with a source of two stored."""
    _, encoders, stored, work = opened(recipe("run"))
    wanted = [clip for each in work for clip in stored.keys.wanted(each)]
    lost = {clip["source-2"].key for clip in wanted if "source-2" in clip}
    lost |= {stored.keys.text("", stored.keys.seen(clip)).key for clip in wanted}
    pool = DecodePool(0, 60.0)
    for drop, gone in ((False, set()), (True, set()), (True, lost), (True, set())):
        stored.store.remove(gone)
        fresh = replace(encoders, embedded=CaptionCache())
        live, kept = examples.batch_encoder(fresh), examples.batch_encoder(fresh, stored)
        for theirs, mine in zip(live.read(work, pool, 1 << 30), kept.read(work, pool, 1 << 30), strict=True):
            dropped = [drop] * len(theirs.captions)
            pairs = zip(live.encode(theirs, dropped).text, kept.encode(mine, dropped).text, strict=True)
            assert all(torch.equal(one, two) for one, two in pairs), (drop, len(gone))
        stored.close()
    pool.close()


class Absent:
    """An encoder that is not in memory."""

    sees_pictures = True


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_what_was_encoded_ahead_is_all_that_training_reads(recipe: Any, share: float) -> None:
    """Of captions that it drops, too, and no more: no encoder embeds anything while it trains."""
    data, encoders, stored, work = opened(recipe("run", objective={"caption_dropout": share}))
    spec = data.plan_spec(1, 1)
    encoding.encode_missing(encoding.build_encoding_job(data, stored, torch.device("cpu"), spec, encoder=encoders))
    absent: Any = Absent()
    kept = examples.batch_encoder(replace(encoders, autoencoder=absent, text_encoder=absent), stored)
    pool = DecodePool(0, 60.0)
    for batch in kept.read(work, pool, 1 << 30):
        for drop in {False, share > 0}:
            kept.encode(batch, [drop] * len(batch.captions))
    pool.close()
    reached = upkeep.reachable_keys(stored, reachable.chunks(data, reachable.in_any_epoch(data)))
    assert reached == {*stored.store.table().column("key").to_pylist()}


@pytest.mark.slow
def test_what_is_made_of_a_source_that_changes_after_the_scan_is_not_stored(recipe: Any, folder: Path) -> None:
    """Neither before training nor in it: its latents, and the embedding of the caption that refers to it."""
    data, encoders, stored, work = opened(recipe("run"))
    picture, kept = folder / "coat/2.jpg", examples.batch_encoder(encoders, stored)
    former, listed = picture.read_bytes(), picture.stat()
    grey(picture, 7, (48, 32))
    _, progress = encoding.encode_missing(
        encoding.build_encoding_job(data, stored, torch.device("cpu"), data.plan_spec(1, 1))
    )
    assert progress.failures == [("after/2.png", "the file has changed since it was scanned")]
    pool = DecodePool(0, 60.0)
    for batch in kept.read(work, pool, 1 << 30):
        kept.encode(batch, [False] * len(batch.captions))
    pool.close()
    picture.write_bytes(former)
    os.utime(picture, ns=(listed.st_atime_ns, listed.st_mtime_ns))
    keys = {each.key: each.kind for batch in work for clip in stored.keys.wanted(batch) for each in clip.values()}
    assert sorted(keys[key] for key in stored.store.missing([*keys])) == ["latent", "text", "text"]


@pytest.mark.parametrize("name", ["after/4.png", "coat/4.jpg"])
def test_nothing_of_a_broken_clip_is_stored_in_training(recipe: Any, folder: Path, name: str) -> None:
    """What stands in for it, with or without its caption, is not under its keys when its file is mended."""
    _, encoders, stored, work = opened(recipe("run"))
    kept, broken = examples.batch_encoder(encoders, stored), folder / name
    former, listed = broken.read_bytes(), broken.stat()
    broken.write_bytes(former[:100] + bytes(len(former) - 100))
    os.utime(broken, ns=(listed.st_atime_ns, listed.st_mtime_ns))  # a scan does not look again
    pool, failures = DecodePool(0, 60.0), []
    for drop in (False, True):
        for batch in kept.read(work, pool, 1 << 30):
            kept.encode(batch, [drop] * len(batch.captions))
            failures += batch.failures
    pool.close()
    broken.write_bytes(former)
    os.utime(broken, ns=(listed.st_atime_ns, listed.st_mtime_ns))
    assert len(failures) == 2
    clips = [clip for batch in work for clip in stored.keys.wanted(batch)]
    (lost,) = (clip for clip in clips if clip["latent"].label == "after/4.png")
    keys = {each.key for clip in clips for each in clip.values()}
    assert stored.store.missing([*keys]) == {each.key for each in lost.values()}


@pytest.mark.slow
def test_trainings_live_and_from_the_store_are_the_same(recipe: Any, folder: Path, tmp_path: Path) -> None:
    """Losses, gradients and validations; previews and pictures are made from two sources, whose order counts."""

    def losses(values: dict[str, Any]) -> list[tuple[float, float]]:
        assert children.train(values) == [0], children.output(values)
        file = RunFolder(Path(values["output"])).events_file
        steps = [(e["loss"], e["grad_norm"]) for e in events.read(file, "step")]
        return steps + [(e["loss"], 0.0) for e in events.read(file, "validation")]

    pair = [f"{folder}/person/1.png", f"{folder}/coat/1.jpg"]
    samples = {"prompts": ["a"], "num_frames": 1, "height": 32, "width": 48, "num_inference_steps": 2, "source": pair}
    live = losses(recipe("live", samples=samples))
    assert losses(recipe("stored", encode={"store": True})) == live
    assert list((tmp_path / "live/samples").rglob("*.png"))
    made = []
    for sources in ([], pair, pair[::-1]):
        output = tmp_path / "made.png"
        command = ["generate", str(tmp_path / "live"), "--prompt", "a", "-o", str(output), "--num-inference-steps", "2"]
        options = [option for source in sources for option in ("--source", source)]
        done = CliRunner().invoke(app, [*command, *options], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        made.append(output.read_bytes())
    assert len(set(made)) == 3


def test_numbers_of_sources_that_cannot_be_are_refused(recipe: Any) -> None:
    with refused("too-many-sources", "dataset.source", says="12 sources, and there are 13"):
        recipe_file.parse(recipe("run", dataset=[{"path": "x", "source": list("abcdefghijklm")}]))
    with refused("companion-mismatch", "dataset.source", says="takes 4 sources"):
        recipe_file.parse(recipe("run", dataset=[{"path": "x", "source": list("abcde")}]))
    with refused("too-few-sources", "dataset.min_sources", says="names 1"):
        recipe_file.parse(recipe("run", dataset=[{"path": "x", "source": "a", "min_sources": 2}]))
    edits = recipe_file.parse(recipe("run")).model_copy(
        update={"dataset": [DatasetConfig(path="x", source=["a"], min_sources=0)]}
    )
    with refused("companion-mismatch", "dataset.min_sources", says="needs a source for each clip"):
        validation.require_dataset_companions(edits.model_copy(update={"model": ModelConfig(name="qwen-image-edit")}))
    validation.require_dataset_companions(edits.model_copy(update={"model": ModelConfig(name="flux2-dev")}))
