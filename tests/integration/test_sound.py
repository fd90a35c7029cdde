"""A clip with sound is trained, from its file or from the store, whatever of it is generated and given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import children
import numpy as np
import pytest
import sound_clips
import tiny_recipe
from refused import refused

from reelworks.commands.main import app
from reelworks.data.media import probe
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.encoding.store import EncodedStore

Recipe = dict[str, Any]


def losses(recipe: Recipe) -> list[float]:
    """Train a recipe, and return the losses of its steps and validations."""
    assert children.train(recipe) == [0], children.output(recipe)
    file = RunFolder(Path(recipe["output"])).events_file
    return [e["loss"] for kind in ("step", "validation") for e in events.read(file, kind)]


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., Recipe]:
    """Make a recipe of clips with sound; keyword arguments are tables that replace the defaults' keys."""
    folder = tmp_path / "clips"
    folder.mkdir()
    for i in range(2):
        sound_clips.write(folder / f"{i}.mp4", seconds=1.0, events=[0.1 + 0.3 * i, 0.7])
        (folder / f"{i}.txt").write_text(f"clip {i}", encoding="utf-8")

    def make(output: str = "run", **changes: Any) -> Recipe:
        entry = {"resolution": "32x32", "num_frames": 12, "batch_size": 2}
        return tiny_recipe.of_sounds(folder, tmp_path / output, **{"bucket": [entry], **changes})

    return make


@pytest.mark.slow  # a training of forty steps and its previews
def test_a_clip_with_sound_is_learned_and_heard_in_previews(recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    """The loss of picture and sound falls, and each preview has as much sound as picture."""
    samples = {"prompts": ["clip 0"], "every_steps": 40, "num_inference_steps": 2}
    changes = {"train": {"max_steps": 40}, "objective": {"caption_dropout": 0.0}, "samples": samples}
    found = losses(recipe(**changes))
    assert sum(found[-10:]) / 10 < 0.6 * sum(found[:3]) / 3
    (preview,) = (tmp_path / "run").rglob("*.mp4")
    with av.open(str(preview)) as file:
        heard = sum(frame.samples / frame.sample_rate for frame in file.decode(audio=0))
    assert heard == pytest.approx(12 / 24, abs=0.15)
    assert probe.probe(preview).num_frames == 12


@pytest.mark.slow
def test_losses_from_the_store_are_those_of_live_encoding(recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    """With each of the modes: both generated, and either given."""
    modes = {"modes": {"sound": 0.4, "video": 0.4}}
    live = losses(recipe("live", sound=modes))
    assert losses(recipe("stored", sound=modes, encode={"store": True})) == live
    kinds = EncodedStore.open(tmp_path / "encoded").table().column("kind").to_pylist()
    assert sorted(set(kinds)) == ["latent", "sound", "text"]
    assert kinds.count("sound") == 2


@pytest.mark.slow  # a training and three times the start of `generate`
def test_a_picture_is_generated_for_a_given_sound(recipe: Callable[..., Recipe], tmp_path: Path) -> None:
    """The file's sound is that of the clip, and another sound makes another picture; so do no frames of its own."""
    run = recipe(train={"max_steps": 1})
    assert len(losses(run)) == 1
    heard, quiet = tmp_path / "heard.wav", tmp_path / "quiet.wav"
    for path, level in ((heard, 20_000), (quiet, 0)):
        with av.open(str(path), "w") as out:
            track = out.add_stream("pcm_s16le", 8000, layout="mono")
            wave = (level * np.sin(np.arange(4000) / 5)).astype(np.int16)[None]
            frame = av.AudioFrame.from_ndarray(wave, "s16", "mono")
            frame.sample_rate = 8000
            out.mux([*track.encode(frame), *track.encode(None)])
    made = {}
    for path in (heard, quiet):
        clip = tmp_path / f"{path.stem}.mp4"
        arguments = [
            str(tmp_path / "run"),
            "--prompt",
            "clip 0",
            "--num-inference-steps",
            "2",
            "--sound",
            str(path),
            "-o",
            str(clip),
        ]
        app(["generate", *arguments], standalone_mode=False)
        with av.open(str(clip)) as file:
            loudest = max(np.abs(f.to_ndarray().astype(np.float32)).max() for f in file.decode(audio=0))
        with av.open(str(clip)) as file:
            made[path.stem] = loudest, np.stack([f.to_ndarray(format="rgb24", threads=1) for f in file.decode(video=0)])
    assert made["heard"][0] > 0.3
    assert made["quiet"][0] < 0.01
    assert (made["heard"][1] != made["quiet"][1]).any()
    assert len(made["heard"][1]) == 12
    with refused("condition-unreadable", "--sound"):
        app(
            [
                "generate",
                str(tmp_path / "run"),
                "--prompt",
                "x",
                "--sound",
                str(tmp_path / "clips"),
                "-o",
                str(tmp_path / "x.mp4"),
            ],
            standalone_mode=False,
        )
