"""The first hour of a person: the commands of the page on LoRAs, word by word, with weights of a hub."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import fake_hub
import page_readers
import pages
import pytest
import tiny_families
from PIL import Image
from reader import Reader, when

from reelworks.data.run import events

LORA = "docs/how-to/train-a-lora.md"
CHILD = Path(__file__).parent / "first_hour_child.py"
RELEASE = "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"


def typed(hub: fake_hub.Hub, folder: Path, commands: list[list[str]]) -> list[dict[str, Any]]:
    """Run commands one after another in a folder; return what each said."""
    environment = os.environ | {"HF_ENDPOINT": hub.address, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_XET": "1"}
    lines = "".join(json.dumps(words) + "\n" for words in commands)
    done = subprocess.run(
        [sys.executable, str(CHILD)],
        input=lines,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        encoding="utf-8",
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["fault"] for result in results] == [None] * len(commands), done.stderr
    return results


@pytest.mark.slow
def test_a_lora_from_the_hub_as_the_page_says(tmp_path: Path) -> None:
    """From four pictures to a merged file; refusals and a revision that is not there are told with a way out.

    A minute or two: libraries, and some steps. Words are added only where the page's training would take longer.
    """
    release = tiny_families.write("wan-tiny", tmp_path / "release")
    work = tmp_path / "work"
    (work / "pictures").mkdir(parents=True)
    for i in range(4):
        Image.new("RGB", (64, 64), (60 * i, 90, 20)).save(work / "pictures" / f"mug-{i:02}.jpg")
    of_page = pages.commands(LORA)
    (new,) = [words for words in of_page if words[1] == "new"]
    (train,) = [words for words in of_page if words[1:2] == ["train"]]
    (merge,) = [words for words in of_page if "--merge" in words]
    short = ["--max-steps", "2", "--set", "samples.num_inference_steps=2"]

    def on(weights: str, *more: str) -> list[str]:
        return [*train, *short, "--set", f"model.weights={weights}", *more]

    with fake_hub.serving() as hub:
        first = hub.put(RELEASE, release, "v1")
        hub.refused = {"owner/gated": "gated"}
        hub.cuts = {"transformer/diffusion_pytorch_model.safetensors"}
        commands = [
            new,
            on("owner/gated"),
            on("owner/unknown"),
            on(f"{RELEASE}@v9"),
            [*train, *short],
            merge,
            on(f"{RELEASE}@v1", "--max-steps", "3"),
        ]
        made, gated, unknown, revision, trained, merged, resumed = typed(hub, work, commands)
        assert not hub.cuts, "a line that breaks costs nothing"
    assert made["code"] == 0, made
    assert "data: 4 pictures" in made["said"]
    assert "accept it at https://huggingface.co/owner/gated" in gated["said"]
    assert "there is no such repository" in unknown["said"]
    assert "has no revision v9" in revision["said"]
    assert trained["code"] == 0, trained
    assert "downloading" in trained["said"]
    assert "step 2/2" in trained["said"]
    assert merged["code"] == 0, merged
    assert (work / "merged.safetensors").is_file()
    assert resumed["code"] == 0, resumed
    assert "resumed from step 2" in resumed["said"]
    start, _ = events.read(work / "runs" / "mug" / "events.jsonl", "start")
    assert start["sources"]["model.weights"] == f"{RELEASE}@{first}"


@pytest.mark.slow
def test_ctrl_c_ends_the_wait_for_a_slow_hub_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """While files come, a line says how much, and a bar how far; what came is not fetched again. Some imports long."""
    release = tiny_families.write("wan-tiny", tmp_path / "release")
    page_readers.clips(tmp_path / "clips", ["a.mp4", "b.mp4"], caption="waves")
    reader = Reader("docs/how-to/load-weights.md", tmp_path, not_typed=set(), not_printed=set(), loose=set())
    entries = [{"resolution": "32px", "num_frames": 5, "batch_size": 1}]
    tables = tiny_families.recipe_of("wan-tiny", "owner/slow") | {"bucket": entries, "validation": {"split": 0.0}}
    reader.writes(
        "recipe.toml", page_readers.recipe(**tables | {"autoencoder": tables["autoencoder"] | {"stride": None}})
    )
    with fake_hub.serving() as hub:
        hub.put("owner/slow", release)
        hub.slow_seconds = 1.0
        reader.knows(HF_ENDPOINT=hub.address, HF_HUB_DISABLE_XET="1")
        stopped = reader.types(
            "reelworks train recipe.toml", code=130, meanwhile=when(lambda: len(hub.served) > 1, signal.SIGINT)
        )
        assert "downloading" in stopped
        assert "Fetching" in stopped
        assert "Traceback" not in stopped
        assert stopped.splitlines()[-1] == "stopped by Ctrl-C", stopped
        hub.slow_seconds = 0.0
        before = list(hub.served)
        assert "step 4/4" in reader.types("reelworks train recipe.toml")
    assert before[0] not in hub.served[len(before) :]
