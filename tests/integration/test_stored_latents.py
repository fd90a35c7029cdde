"""Training from stored latents is the training that encodes live, whatever was killed and whoever shared the work."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import children
import diffusers
import encode_child
import numpy as np
import pytest
import tiny_families
import tiny_recipe
import torch
import transformers

from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.inference.generate import writers
from reelworks.training.encoding.store import EncodedStore
from reelworks.training.recipe import dataset, recipe_file

Recipe = dict[str, Any]
FIXED = {"num_workers": 0, "clip_start": "start"}
CLIPS, CAPTIONS = 17, 17


def losses(recipe: Recipe) -> list[tuple[float, float]]:
    """Train a recipe, and return loss and gradient norm of its steps with the losses of its validations."""
    assert children.train(recipe) == [0], children.output(recipe)
    file = RunFolder(Path(recipe["output"])).events_file
    steps = [(e["loss"], e["grad_norm"]) for e in events.read(file, "step")]
    return steps + [(e["loss"], 0.0) for e in events.read(file, "validation")]


def checksums(folder: Path) -> dict[str, str]:
    """Return the checksum of every stored tensor, none of which is damaged."""
    store = EncodedStore.open(folder)
    assert not [row for row, problem in store.verify() if problem]
    rows = store.table().select(["key", "checksum"]).to_pylist()
    return {row["key"]: row["checksum"] for row in rows}


def start(recipe: Recipe) -> Any:
    process = children.process(encode_child.encode, recipe)
    process.start()
    return process


@pytest.fixture
def recipes(tiny: Callable[..., Recipe], tmp_path: Path) -> Callable[[str], Recipe]:
    """Make a recipe that stores in a folder of its own; all have one catalog."""

    def make(folder: str) -> Recipe:
        stores = {"store": True, "folder": str(tmp_path / folder)}
        return tiny(catalog=str(tmp_path / "catalog"), encode=stores)

    dataset.scan_recipe(recipe_file.parse(make("unused")))
    return make


def test_losses_from_the_store_are_those_of_live_encoding(tiny: Callable[..., Recipe], tmp_path: Path) -> None:
    objective = {"caption_dropout": 0.3}
    live = losses(tiny("live", data=FIXED, objective=objective))
    stored = losses(tiny("stored", data=FIXED, objective=objective, encode={"store": True}))
    assert stored == live
    assert len(checksums(tmp_path / "encoded")) == CLIPS + CAPTIONS


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_encoding_goes_on_after_kills(recipes: Callable[[str], Recipe], tmp_path: Path, kills: int) -> None:
    whole = start(recipes("whole"))
    whole.join(300)
    assert whole.exitcode == 0
    began = time.monotonic()
    encode_child.encode(recipes("timed"))
    seconds = time.monotonic() - began
    draw, seen = random.Random(kills), 0
    for _ in range(kills):
        process = start(recipes("killed"))
        time.sleep(draw.uniform(0, 1.5 * seconds))
        process.kill()  # SIGKILL
        process.join(300)
        stored = len(EncodedStore.open(tmp_path / "killed").table())
        assert stored >= seen  # what was committed stays
        seen = stored
    last = start(recipes("killed"))
    last.join(300)
    assert last.exitcode == 0
    assert checksums(tmp_path / "killed") == checksums(tmp_path / "whole")


@pytest.mark.slow
def test_processes_share_the_work(recipes: Callable[[str], Recipe], tmp_path: Path) -> None:
    pair = [start(recipes("shared")) for _ in range(2)]
    for process in pair:
        process.join(300)
    assert [process.exitcode for process in pair] == [0, 0]
    encode_child.encode(recipes("alone"))
    assert checksums(tmp_path / "shared") == checksums(tmp_path / "alone")
    entries = EncodedStore.open(tmp_path / "shared").table()
    assert len(entries) == CLIPS + CAPTIONS  # nothing was encoded twice


@pytest.mark.slow
def test_a_start_that_is_refused_has_encoded_nothing(tiny: Callable[..., Recipe], tmp_path: Path) -> None:
    """Encoding may take hours: what names no checkpoint, or a LoRA file that is not there, is told before it."""
    recipe = tiny(data=FIXED, encode={"store": True}, train={"max_steps": 1}, validation={"split": 0.0})
    assert children.train(recipe) == [0], children.output(recipe)
    shutil.rmtree(tmp_path / "encoded")
    for refused, options, says in (
        (recipe, {"resume": "never"}, "the run folder already has checkpoints"),
        (recipe, {"resume": "7"}, "there is no checkpoint of this step"),
        (tiny("other", encode={"store": True}, lora={"rank": 2, "weights": str(tmp_path / "no")}), {}, "lora.weights"),
    ):
        assert children.train(refused, **options) != [0]
        assert says in children.output(refused)
        assert not (tmp_path / "encoded").exists()


@pytest.mark.slow
def test_two_ranks_train_from_one_store(tiny: Callable[..., Recipe], tmp_path: Path) -> None:
    recipe = tiny("two", data=FIXED, encode={"store": True}, train={"max_steps": 2})
    assert children.train(recipe, world=2) == [0, 0], children.output(recipe)
    entries = EncodedStore.open(tmp_path / "encoded").table()
    assert len(entries) == CLIPS + CAPTIONS


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [pytest.param("float32", 1e-5, marks=pytest.mark.slow), ("bfloat16", 0.02)]
)
@pytest.mark.slow
def test_given_frames_and_their_embeddings_come_from_the_store_too(
    vision: Path, tmp_path: Path, dtype: str, tolerance: float
) -> None:
    """With an autoencoder of diffusers, whose latents differ with the batch they are computed in."""
    folder = tmp_path / "clips"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for i in range(4):
        writers.write_video(folder / f"{i}.mp4", generator.integers(0, 256, (7, 32, 32, 3), dtype=np.uint8), 24.0)
        (folder / f"{i}.txt").write_text(f"clip {i}", encoding="utf-8")
    values: Recipe = tiny_recipe.least(
        dataset=[{"path": str(folder)}],
        bucket=[{"resolution": "32x32", "num_frames": 5, "batch_size": 2}],
        data=FIXED,
        model={"name": "wan-flf2v-tiny", "image_encoder": str(vision)},
        autoencoder={"name": "wan-2.1", "weights": str(vision)},
        text_encoder={"dim": 16, "max_length": 6},
        precision={"compute": "float32"},
        train={"max_steps": 4, "threads": 1},
        validation={"split": 0.0},
    )
    live = losses(values | {"output": str(tmp_path / "live")})
    stores = {"store": True, "dtype": dtype, "folder": str(tmp_path / "encoded")}
    stored = losses(values | {"output": str(tmp_path / "stored"), "encode": stores})
    assert np.array(stored) == pytest.approx(np.array(live), rel=tolerance)
    rows = EncodedStore.open(tmp_path / "encoded").table().to_pylist()
    kinds = Counter(row["kind"] for row in rows)
    assert kinds == {"latent": 4, "first_frame grey last": 4, "image last": 4, "text": 5}


@pytest.fixture
def vision(tmp_path: Path) -> Path:
    """A tiny autoencoder of Wan and a tiny CLIP of random weights, in diffusers' layout."""
    torch.manual_seed(0)
    diffusers.AutoencoderKLWan(**tiny_families.WAN).eval().save_pretrained(tmp_path / "parts" / "vae")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.CLIPVisionConfig(image_size=64, patch_size=4, **sizes)  # 257 tokens
    transformers.CLIPVisionModel(config).save_pretrained(tmp_path / "parts" / "image_encoder")
    processor = transformers.CLIPImageProcessor(size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64})
    processor.save_pretrained(tmp_path / "parts" / "image_processor")
    return tmp_path / "parts"
