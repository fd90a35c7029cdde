"""A run with a LoRA that nothing trained: its checkpoint, recipe, events and previews, with names of a person everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import media_makers
import numpy as np
import plan_summaries
import tiny_recipe
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from reelworks.core import digests, files
from reelworks.data.checkpoint import save
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run.events import EventLog
from reelworks.data.run.folder import RunFolder
from reelworks.models.base_model import Base
from reelworks.models.export import lora
from reelworks.training.plan.plan_report import PlanSummary
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe

# In names of folders, files, accounts and tags; none of it may be published.
PERSON = "ottilie"
HOME = f"/home/{PERSON}"
PROMPT = "rwmug on a table: \"hot\" & 'full'"


def make(
    folder: Path, *, weights: str = f"{HOME}/wan", on_hub: dict[str, str] | None = None, **changes: Any
) -> RunFolder:
    """Write a run with checkpoints of the steps 10 and 20 and previews at 10, as `folder/PERSON/run`.

    `weights` are those of its base, and `on_hub` what it downloaded, by recipe key.
    """
    run = RunFolder(folder / PERSON / "run")
    own: dict[str, Any] = {
        "lora": {"rank": 2, "targets": ["to_q"]},
        "samples": {"prompts": [PROMPT], "num_inference_steps": 8, "guidance_scale": 3.0},
        "exclude_file": f"{HOME}/bad.txt",
        "logging": {"trackers": ["wandb"], "entity": PERSON, "project": f"{PERSON}s-cups", "tags": [PERSON]},
        "checkpoints": {"keep_best": {"metric": "validation/loss"}, "mirror": {"url": f"s3://{PERSON}/runs"}},
        "encode": {"folder": f"{HOME}/encoded"},
        "cost": {"measured": f"{HOME}/costs.json"},
    }
    data = {"path": f"{HOME}/cups", "name": PERSON, "caption": "rwmug, {text}", "filter": f'path != "{PERSON}.png"'}
    values = tiny_recipe.of_family("wan-tiny", run.path, data, **(own | changes))
    values["model"]["weights"] = weights
    recipe = recipe_file.parse(values)
    run.create()
    name = run.keep_recipe(recipe_file.dump(recipe))
    log, store = EventLog(run.events_file), CheckpointFolder(run.checkpoints_folder)
    log.write("start", step=0, recipe=name, device="cpu", world_size=1, resumed_from=None, sources=on_hub or {})
    for step in range(1, 21):
        log.write("step", step=step, clips=3, seconds=0.5, applied=step != 5, epoch=0)
        if step % 10 == 0:
            _save(store, step)
    write_previews(run, log)
    return run


def go_on(run: RunFolder, step: int, recipe: Recipe, data: PlanSummary | None = None, **start: Any) -> None:
    """Train ten more steps after a step by another recipe, or by the same one on another plan, on eight GPUs."""
    name, log = run.keep_recipe(recipe_file.dump(recipe)), EventLog(run.events_file)
    log.write("start", step=step, recipe=name, resumed_from=step, **{"device": "gpu", "world_size": 8} | start)
    files.write_json(run.summary_file(step), data or plan_summaries.summary())
    for number in range(step + 1, step + 11):
        log.write("step", step=number, clips=2, seconds=1.0, applied=True, epoch=0)
    _save(CheckpointFolder(run.checkpoints_folder), step + 10)


def _save(store: CheckpointFolder, step: int) -> None:
    torch.manual_seed(step)
    names = [f"blocks.{i}.attn{j}.to_q.lora_{side}.default.weight" for i in (0, 1) for j in (1, 2) for side in "AB"]
    weights = {name: torch.randn((2, 24) if "_A." in name else (24, 2)) for name in names}
    average = {name: value + 1 for name, value in weights.items()}
    base = Base("wan-tiny", f"{HOME}/wan", digests.digest_bytes(b"base"))
    state = {"model": weights, "ema": average}
    metrics = {"validation/loss": 1.0 / step if step == 10 else 2.0}
    save.save(store, step, state, extra={lora.BASE: base.to_json().encode()}, metrics=metrics)


def write_previews(run: RunFolder, log: EventLog) -> None:
    """A picture with EXIF and texts, and a clip with tags."""
    folder = run.samples_folder / "step-000000010"
    folder.mkdir(parents=True)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8))
    exif, text = Image.Exif(), PngInfo()
    exif[0x013B] = PERSON  # the artist
    text.add_text("parameters", PERSON)
    picture.save(folder / "00.png", exif=exif, pnginfo=text)
    media_makers.write(folder / "plain.mp4", np.zeros((5, 32, 32, 3), np.uint8))
    with av.open(str(folder / "plain.mp4")) as plain, av.open(str(folder / "01.mp4"), "w") as tagged:
        stream = tagged.add_stream_from_template(plain.streams.video[0])
        tagged.metadata.update({"title": PERSON, "comment": PERSON})
        stream.metadata.update({"handler_name": PERSON})
        for packet in plain.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                tagged.mux(packet)
    names = [f"step-000000010/{name}" for name in ("00.png", "01.mp4")]
    log.write("samples", step=10, files=names, prompts=[PROMPT, PROMPT], by="own", num_inference_steps=8)
