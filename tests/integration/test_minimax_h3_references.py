"""MiniMax-H3 learns from clips with their first and last frames, or with references, live and from the store alike."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import children
import minimax_h3_release
import numpy as np
import pytest
import sound_clips
import tiny_recipe
import torch
from media_makers import write
from PIL import Image
from refused import refused
from typer.testing import CliRunner

from reelworks.commands.main import app
from reelworks.core.shape import Shape
from reelworks.data.catalog import sources
from reelworks.data.catalog.sources import ALIGNED
from reelworks.data.loader.step_source import StepSource
from reelworks.data.media.sound import SoundRequest
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.training.recipe import dataset, recipe_file
from reelworks.training.recipe.dataset import RecipeData

CLIPS = 4


def moving(shade: int, frames: int = 22, size: tuple[int, int] = (32, 64)) -> np.ndarray:
    t, x = np.mgrid[:frames, : size[1]]
    return np.broadcast_to((shade + 3 * t + x).astype(np.uint8)[:, None, :, None], (frames, *size, 3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips, of which each has a picture and perhaps a second reference: a picture of another shape, or a clip."""
    root = tmp_path_factory.mktemp("material")
    for i in range(CLIPS):
        write(root / f"clips/{i}.mp4", moving(20 * i))
        (root / f"clips/{i}.txt").write_text("two cats sit on a wall", encoding="utf-8")
        for kind, size in (("person", (64, 32)), ("place", (32, 96))):
            (root / kind).mkdir(exist_ok=True)
            if kind == "person" or i == 0:
                Image.fromarray(moving(90 + i, 1, size[::-1])[0]).save(root / kind / f"{i}.png")
        if i == 1:
            write(root / f"place/{i}.mp4", moving(150))
    for folder in ("loud", "voice", "film"):
        (root / folder).mkdir()
    for i in range(CLIPS):
        sound_clips.add_sound(root / f"clips/{i}.mp4", root / f"loud/{i}.mkv", tone(1.5), 32_000)
        (root / f"loud/{i}.txt").write_text("two cats sit on a wall", encoding="utf-8")
        if i < 3:
            sound_clips.write_sound(root / f"voice/{i}.wav", tone(0.5 if i == 0 else 2.0), 44_100)
    shutil.copy(root / "loud/1.mkv", root / "film")
    return root


def tone(seconds: float, rate: int = 32_000) -> np.ndarray:
    at = np.arange(int(seconds * rate)) / rate
    return np.round(9000 * np.sin(2 * np.pi * 440 * at)).astype(np.int16)[:, None]


def values(name: str, folder: Path, output: Path, place: Path | None = None, **changes: Any) -> dict[str, Any]:
    data = {"path": f"{folder}/clips"}
    if "ref" in name:
        data |= {"source": [f"{folder}/person", f"{folder}/place"], "min_sources": 1}
    if "sound" in name:
        data |= {"path": f"{folder}/loud", "source": [f"{folder}/{kind}" for kind in ("film", "person", "voice")]}
    size = {"resolution": "32x64", "num_frames": 22, "batch_size": 1}
    sound = {"sound": {"name": "pcm", "sample_rate": 32_000}, "data": {"fps": 24}} if "sound" in name else {}
    made = tiny_recipe.of_family(name, output, data, bucket=[size], **sound) | changes
    if place is not None:
        text = "minimax-h3-references" if "ref" in name else "minimax-h3-keyframes"
        made |= {
            "autoencoder": {"name": "minimax-h3", "weights": str(place)},
            "text_encoder": {"name": text, "weights": str(place), "dim": 32, "max_length": 256},
        }
        if "sound" in name:
            made |= {"sound": {"name": "minimax-h3", "weights": str(place)}}
    return made


def test_pictures_among_references_have_one_size_and_micro_batches_one_layout(folder: Path, tmp_path: Path) -> None:
    """Beside a picture or a clip in the second place, or nothing; clips have about the area of what is trained."""
    many = [{"resolution": "32x64", "num_frames": 22, "batch_size": 4}]
    recipe = recipe_file.parse(values("minimax-h3-ref-tiny", folder, tmp_path / "run", bucket=many))
    dataset.scan_recipe(recipe)
    data = RecipeData.open(recipe)
    plan, source, shapes = data.plan(data.plan_spec(1, 1), 0), StepSource(data, 0, 1), []
    for plan_step in range(plan.num_steps):
        for work in source.requests_of_step(plan, 0, plan_step):
            for requests in work.companions.values():
                assert len({request and request.shape for request in requests}) == 1
            given = (work.companions.get(kind) for kind in ("source", "source-2"))
            shapes.append(tuple(each[0].shape if each else None for each in given))
    person = Shape(1, 64, 128)
    assert sorted(shapes, key=str) == sorted(
        [(person, Shape(1, 200, 64)), (person, Shape(22, 32, 64)), (person, None)], key=str
    )


def test_sounds_of_references_are_as_long_as_the_clip_at_most(folder: Path, tmp_path: Path) -> None:
    """A film's own sound and a voice; the shorter voice has a micro-batch of its own, and so has the clip without one."""
    many = [{"resolution": "32x64", "num_frames": 22, "batch_size": 4}]
    recipe = recipe_file.parse(values("minimax-h3-ref-sound-tiny", folder, tmp_path / "run", bucket=many))
    dataset.scan_recipe(recipe)
    data = RecipeData.open(recipe)
    plan, source, found = data.plan(data.plan_spec(1, 1), 0), StepSource(data, 0, 1), {}
    for plan_step in range(plan.num_steps):
        for work in source.requests_of_step(plan, 0, plan_step):
            for i, request in enumerate(work.requests):
                given = {kind: requests[i] for kind, requests in work.companions.items()}
                assert all(given.values())
                found[Path(request.path).stem] = {
                    kind: each.num_samples for kind, each in given.items() if isinstance(each, SoundRequest)
                }
                assert "source-2" in given
                assert "source-3" not in given
    whole = 22 * 32_000 // 24
    expected = [{"source-3-sound": 16_000 * 32_000 // 44_100 + 1}, {"source-sound": whole, "source-3-sound": whole}]
    assert [found[str(i)] for i in range(CLIPS)] == [*expected, {"source-3-sound": whole}, {}]


def test_a_clip_with_sounds_alone_is_left_out(folder: Path, tmp_path: Path) -> None:
    """The release refuses such references; a network without sound finds no source in a sound."""
    data = [{"path": f"{folder}/loud", "source": f"{folder}/voice"}]
    for name, refused_sounds in (("minimax-h3-ref-sound-tiny", 3), ("minimax-h3-ref-tiny", 0)):
        recipe = recipe_file.parse(values(name, folder, tmp_path / name, dataset=data))
        dataset.scan_recipe(recipe)
        opened = RecipeData.open(recipe)
        reasons = [opened.companions["source"].explain(opened.rows, i) for i in range(CLIPS)]
        assert sum("has no source with pictures" in reason for reason in reasons) == refused_sounds
        assert sum(reason.startswith("no source ") for reason in reasons) == CLIPS - refused_sounds


@pytest.mark.parametrize("ratio", [ALIGNED, -12, 0, 7])
def test_the_shorter_side_of_a_picture_is_what_is_asked_for(ratio: int) -> None:
    clip = Shape(22, 32, 64)
    made = sources.own_shape(clip, ratio, (32, 32), 2048)
    assert made.num_frames == 1
    assert min(made.height, made.width) == 2048
    aspect = 2.0 if ratio == ALIGNED else 1.1**ratio
    assert made.width / made.height == pytest.approx(aspect, rel=0.01)


def test_what_a_recipe_lacks_is_named_before_the_first_step(folder: Path, tmp_path: Path) -> None:
    """A reference for a network that takes none, none for one that needs one, too many, and frames that it has anyway."""
    with refused("companion-mismatch", "dataset.source", says="minimax-h3-ref"):
        recipe_file.parse(
            values("minimax-h3-flf2v-tiny", folder, tmp_path, dataset=[{"path": "clips", "source": "people"}])
        )
    with refused("companion-mismatch", "dataset.source"):
        recipe_file.parse(values("minimax-h3-ref-tiny", folder, tmp_path, dataset=[{"path": "clips"}]))
    with refused("companion-mismatch", "dataset.min_sources"):
        few = [{"path": "clips", "source": "people", "min_sources": 0}]
        recipe_file.parse(values("minimax-h3-ref-tiny", folder, tmp_path, dataset=few))
    for name in ("minimax-h3-flf2v-tiny", "minimax-h3-ref-tiny"):
        with refused("conditions-not-taken", "objective.mask_ratios"):
            recipe_file.parse(values(name, folder, tmp_path, objective={"mask_ratios": {"image_head": 0.5}}))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("name", ["minimax-h3-flf2v-tiny", "minimax-h3-ref-tiny", "minimax-h3-ref-sound-tiny"])
def test_a_training_live_and_stored(folder: Path, tmp_path: Path, name: str) -> None:
    """Losses are the same, and what was learnt makes another clip of another picture that it is shown."""
    place = minimax_h3_release.write(tmp_path / "release", hears="sound" in name)
    learns = {"max_epochs": 1, "threads": 1, "learning_rate": 1e-3}
    shown: dict[str, Any] = {"source": f"{folder}/person/0.png"} if "ref" in name else {}
    if "sound" in name:
        shown = {"source": [f"{folder}/voice/1.wav", f"{folder}/person/0.png"]}
    if not shown:
        shown = {"reference": f"{folder}/clips/0.mp4", "last_frame": f"{folder}/person/0.png"}
    size = {"num_frames": 22, "height": 32, "width": 64, "num_inference_steps": 2}
    live = values(name, folder, tmp_path / "run", place, train=learns, samples={"prompts": ["waves"], **shown, **size})
    stored = live | {"output": str(tmp_path / "stored"), "encode": {"store": True, "folder": str(tmp_path / "encoded")}}
    losses = []
    for recipe in (live, stored):
        assert children.train(recipe) == [0], children.output(recipe)
        steps = events.read(RunFolder(Path(recipe["output"])).events_file, "step")
        losses.append([step["loss"] for step in steps])
    assert len(losses[0]) == CLIPS
    torch.testing.assert_close(*map(torch.tensor, losses), rtol=1e-4, atol=1e-5)
    command = ["generate", str(tmp_path / "run"), "--prompt", "waves", "--num-inference-steps", "2", "--height", "32"]
    command += ["--width", "64", "--num-frames", "22"]
    made = set()
    for number in (1, 2):
        out = tmp_path / f"made-{number}.mp4"
        picture = f"{folder}/person/{number}.png"
        given = (
            ["--source", picture, "--source", f"{folder}/{'film/1.mkv' if 'sound' in name else 'place/1.mp4'}"]
            if "ref" in name
            else ["--reference", picture, "--last-frame", f"{folder}/person/0.png", "--condition-frames", "1"]
        )
        done = CliRunner().invoke(app, [*command, "-o", str(out), *given])
        assert done.exit_code == 0, done.output
        made.add(out.read_bytes())
    assert len(made) == 2
