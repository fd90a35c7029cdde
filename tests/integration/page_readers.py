"""What readers of each page have before them, and what they do between its lines; pages without any are only read.

Where a page's training would take minutes, its recipe or command is given fewer steps here; all other words are those of
the page.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import signal
import struct
import subprocess
import tomllib
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import av
import caption_server
import fake_hub
import numpy as np
import pages
import published_run
import s3_server
import tiny_families
import tiny_recipe
import tiny_vlm
import tomli_w
from caption_server import Served
from hub_uploads import Account, Uploads
from metric_networks import TINY, save_classifier
from PIL import Image, ImageDraw
from reader import Reader, when
from safetensors.torch import load_file, save_file

from reelworks import testing
from reelworks.inference.generate import writers
from reelworks.models import identify
from reelworks.models.storage import weights


class Shared(NamedTuple):
    """What several pages begin with, made once; to be copied."""

    demo: Path  # a folder with the demo's footage

    def footage(self, reader: Reader) -> None:
        """Lay out the footage of `reelworks demo-data footage`."""
        shutil.copytree(self.demo / "footage", reader.folder / "footage")


Script = Callable[[Reader, Shared], None]
READERS: dict[str, Script] = {}


def of(page: str) -> Callable[[Script], Script]:
    """Register what a reader of a page has and does."""

    def register(script: Script) -> Script:
        READERS[page] = script
        return script

    return register


def pictures(folder: Path, names: list[str], size: tuple[int, int] = (160, 160), caption: str | None = None) -> None:
    """Draw a disc on a ground of another colour each, with the same caption beside each."""
    folder.mkdir(parents=True)
    for i, name in enumerate(names):
        picture = Image.new("RGB", size, (40 * i % 256, 90, 20))
        ImageDraw.Draw(picture).ellipse((20 + 4 * i, 20, 80 + 4 * i, 80), fill=(220, 200, 60))
        picture.save(folder / name)
        if caption is not None:
            (folder / name).with_suffix(".txt").write_text(caption, encoding="utf-8")


def clips(
    folder: Path, names: list[str], size: tuple[int, int] = (32, 32), caption: str | None = None, num_frames: int = 9
) -> None:
    """Write clips of noise; size is (height, width)."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    for name in names:
        writers.write_video(folder / name, generator.integers(0, 256, (num_frames, *size, 3), dtype=np.uint8), 24.0)
        if caption is not None:
            (folder / name).with_suffix(".txt").write_text(caption, encoding="utf-8")


def recipe(path: str = "clips", output: str = "run", **changes: Any) -> str:
    """Return the text of a recipe whose training takes a second; tables are added to those that it has, but `model`.

    None leaves a key out.
    """
    values = tiny_recipe.changed(tiny_recipe.values(path, output), changes)
    values |= {key: changes[key] for key in changes if key == "model"}
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    return tomli_w.dumps(
        values | {key: {k: v for k, v in table.items() if v is not None} for key, table in tables.items()}
    )


def small_clips(reader: Reader, folder: str = "clips") -> None:
    """Lay out four clips and eight pictures with captions."""
    shutil.copytree(testing.sample_folder(), reader.folder / folder)


def shown(path: Path) -> tuple[int, int, int]:
    """Return frames, height and width of a clip or picture; it is decoded."""
    with av.open(str(path)) as opened:
        frames = list(opened.decode(video=0))
    return len(frames), frames[0].height, frames[0].width


@of("docs/start/first-run.md")
def first_run(reader: Reader, _: Shared) -> None:
    reader.reads()
    assert (reader.folder / "red.mp4").stat().st_size > 0
    assert (reader.folder / "runs/first/report.html").stat().st_size > 0


@of("docs/start/own-pictures.md")
def own_pictures(reader: Reader, _: Shared) -> None:
    pictures(reader.folder / "photos", ["coffee.png", "cup.jpg", "tin.webp"], caption="a photo of coffee")
    recipe, replaced = re.subn(r"max_steps = 2000", "max_steps = 30", reader.block("upscale = true"))
    assert replaced == 1
    reader.writes("photos.toml", recipe)
    reader.reads(until="If you have no pictures at hand")
    with Image.open(reader.folder / "coffee.png") as drawn:
        assert drawn.size == (128, 128)
    shutil.copytree(Path(__file__).parents[2] / "scripts", reader.folder / "scripts")
    reader.adds["reelworks train recipes/real-footage.toml"] = "--max-steps 3 --set samples.num_inference_steps=2"
    reader.reads()


@of("docs/start/reading-a-plan.md")
def reading_a_plan(reader: Reader, shared: Shared) -> None:
    shared.footage(reader)
    recipe = (reader.folder / "recipes/first-run.toml").read_text(encoding="utf-8").replace("demo/footage", "footage")
    for name in ("RECIPE", "a.toml"):
        reader.writes(name, recipe)
    reader.writes("b.toml", recipe.replace("max_crop = 0.6", "max_crop = 0.1"))
    reader.reads(until="Further epochs")
    demo = "reelworks plan recipes/first-run.toml --data-path footage --set output=runs/x"
    reader.types(f"{demo} --world 2 --set 'bucket.0.batch_size=[16,4,2,2]' --epochs 3")
    reader.types(f"{demo} --world 8 --epochs 3 --set 'bucket.0.batch_size=[32,8,4,4]'")
    reader.reads()
    assert "<svg" in (reader.folder / "plan.html").read_text(encoding="utf-8")


@of("docs/how-to/captions-and-augmentation.md")
def captions(reader: Reader, _: Shared) -> None:
    small_clips(reader)
    (reader.folder / "clips/clip-0.txt").write_text("a kite\na red kite above a beach\n", encoding="utf-8")
    reader.writes("RECIPE", recipe(output="RUN"))
    reader.types("reelworks scan clips -o CATALOG")
    reader.types("reelworks train RECIPE")
    reader.names["N"] = "2"
    reader.reads()
    assert "several lines" in reader.printed


def name_opensora_configs(reader: Reader) -> None:
    """Lay out the configs of version 1.2 as `stage1.py` to `stage3.py`."""
    shutil.copytree(Path(__file__).parents[1] / "opensora_configs", reader.folder, dirs_exist_ok=True)
    for stage in (1, 2, 3):
        (reader.folder / f"opensora-1.2-stage{stage}.py").rename(reader.folder / f"stage{stage}.py")


@of("docs/how-to/train-in-stages.md")
def train_in_stages(reader: Reader, shared: Shared) -> None:
    shared.footage(reader)
    reader.writes("page.toml", reader.block("version = 1"))
    assert "sharpness > 0.4 leaves out" in reader.types("reelworks plan page.toml")
    shutil.rmtree(reader.folder / "footage")
    name_opensora_configs(reader)
    small_clips(reader, "footage")
    first, second = {"name": "pictures", "steps": 3}, {"name": "clips", "epochs": 1, "train": {"learning_rate": 5e-4}}
    reader.writes("stages.toml", recipe("footage", "RUN", train={"max_steps": None}, stage=[first, second]))
    reader.reads(until="Editing a finished stage")
    edited = [{**first, "train": {"weight_decay": 0.1}}, {**second, "epochs": 2}]
    reader.writes("stages.toml", recipe("footage", "RUN", train={"max_steps": None}, stage=edited))
    reader.types("reelworks train stages.toml")
    reader.reads()


@of("docs/how-to/come-from-open-sora.md")
def open_sora(reader: Reader, _: Shared) -> None:
    name_opensora_configs(reader)
    pictures(reader.folder / "clips", [f"{i}.png" for i in range(12)], (640, 360), "a kite")
    reader.reads(until="That\nis enough to plan")
    imported = reader.folder / "stage1.toml"
    imported.write_text(
        re.sub(r"(?m)^path = .*", 'path = "clips"', imported.read_text(encoding="utf-8")), encoding="utf-8"
    )
    reader.reads()


@of("docs/how-to/move-here.md")
def move_here(reader: Reader, _: Shared) -> None:
    shutil.copytree(Path(__file__).parents[1] / "opensora_configs", reader.folder, dirs_exist_ok=True)
    (reader.folder / "opensora-1.2-stage1.py").rename(reader.folder / "stage1.py")
    pictures(reader.folder / "clips", [f"{i}.png" for i in range(3)], (640, 360), "a kite")
    reader.reads()


GOLDEN_IMPORTS = Path(__file__).parents[1] / "golden" / "imports"


def lay_out(reader: Reader, files: dict[str, str]) -> None:
    """Copy golden configs of other trainers to the names that a page has for them."""
    for source, name in files.items():
        (reader.folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(GOLDEN_IMPORTS / source, reader.folder / name)


@of("docs/how-to/come-from-ai-toolkit.md")
def ai_toolkit(reader: Reader, _: Shared) -> None:
    lay_out(reader, {"ai-toolkit-1.yaml": "train_lora_flux_24gb.yaml"})
    reader.reads()


@of("docs/how-to/come-from-diffusion-pipe.md")
def diffusion_pipe(reader: Reader, _: Shared) -> None:
    lay_out(reader, {"diffusion-pipe-1.toml": "main.toml", "diffusion-pipe-1-dataset.toml": "dataset.toml"})
    lay_out(reader, {"diffusion-pipe-1-dataset.toml": "diffusion-pipe-1-dataset.toml"})
    reader.reads()


@of("docs/how-to/come-from-onetrainer.md")
def onetrainer(reader: Reader, _: Shared) -> None:
    lay_out(reader, {"onetrainer-1.json": "config.json", "onetrainer-1-concepts.json": "concepts.json"})
    reader.reads()


@of("docs/how-to/come-from-simpletuner.md")
def simpletuner(reader: Reader, _: Shared) -> None:
    files = ("simpletuner-1-data.json", "simpletuner-1-lycoris.json")
    lay_out(reader, {"simpletuner-1.json": "config/config.json", **{file: f"config/{file}" for file in files}})
    lay_out(reader, {"simpletuner-1.json": "config.json", **{file: file for file in files}})
    lay_out(reader, {files[0]: "multidatabackend.json"})
    reader.reads()


@of("docs/how-to/companions.md")
def companions(reader: Reader, _: Shared) -> None:
    here = reader.folder
    names = ["a", "night/b", "c", "d"]
    for name in names:
        for part, suffix, value in (("photos", "jpg", 90), ("depth", "png", 120), ("masks", "png", 255)):
            path = here / "shots" / part / f"{name}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (48, 32), (value, value, value)).save(path)
        (here / "shots/photos" / f"{name}.txt").write_text("a red kite", encoding="utf-8")
    control = {"dataset": tomllib.loads(reader.block('control = "shots/depth"'))["dataset"]}
    pictured = {"bucket": [{"resolution": "32x48", "num_frames": 1, "batch_size": 2}]}
    filmed = {"bucket": [{"resolution": "32x32", "num_frames": 5, "batch_size": 2}]}
    reader.writes("RECIPE", of_family("flux-control-tiny", "RUN", control | pictured))
    for folder in ("after", "before", "coats"):
        pictures(here / folder, ["0.png", "1.png", "2.png"], (48, 32), "make it night" if folder == "after" else None)
        names = ["0.mp4", "1.mp4", "2.mp4"]
        clips(here / "shots" / folder, names, caption="it snows" if folder == "after" else None)
    edits = {"path": "after", "source": "before"}
    pairs = {"path": "shots/after", "source": "shots/before"}
    vision = {"image_encoder": "clip"}
    image_encoder(here / "clip")
    runs = {
        "depth": of_family("flux-control-tiny", "runs/depth", control | pictured),
        "i2v": of_family("wan-i2v-tiny", "runs/i2v", {"dataset": [{"path": "shots/after"}]} | filmed, **vision),
        "flf2v": of_family("wan-flf2v-tiny", "runs/flf2v", {"dataset": [{"path": "shots/after"}]} | filmed, **vision),
        "edit": of_family("flux-kontext-tiny", "runs/edit", {"dataset": [edits]} | pictured),
        "dress": of_family(
            "flux2-tiny", "runs/dress", {"dataset": [edits | {"source": ["before", "coats"]}]} | pictured
        ),
        "ltx": of_family("ltx-tiny", "runs/ltx", {"dataset": [pairs]} | filmed),
        "vace": of_family("wan-vace-tiny", "runs/vace", {"dataset": [{"path": "shots/after"}]} | filmed),
    }
    for name, text in runs.items():
        reader.writes(f"{name}.toml", text)
    for name in ("depth", "first", "last", "photo", "person", "coat", "area"):
        Image.new("RGB", (48, 32) if name in ("depth", "photo", "person", "coat") else (32, 32), "gray").save(
            here / f"{name}.png"
        )
    clips(here, ["depth.mp4", "clip.mp4"])
    reader.reads(until="```\nreelworks generate runs/depth")
    for name in runs:
        reader.types(f"reelworks train {name}.toml")
    reader.reads()
    for name in ("kite.png", "snow.mp4", "night.png", "dressed.png", "knight.mp4", "cat.mp4"):
        assert shown(here / name)[0] == (1 if name.endswith("png") else 5), name


def of_family(name: str, output: str, changes: dict[str, Any], **of_model: str) -> str:
    """Return a recipe that trains a tiny model of diffusers for two steps, from random weights."""
    pooled = {"pooled_dim": 8} if name.startswith("flux-") else {}
    short: dict[str, Any] = {"train": {"max_steps": 2}, "validation": {"split": 0.0}}
    short |= {"buckets": {"aspect_ratios": None}, "samples": {"num_inference_steps": 2}}
    components = {"autoencoder": {"stride": 4}, "text_encoder": pooled}
    return recipe(output=output, model={"name": name} | of_model, **short, **components, **changes)


def image_encoder(folder: Path) -> None:
    """Write a tiny image encoder of random weights, as Wan 2.1 has it beside its other parts."""
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.CLIPVisionConfig(image_size=64, patch_size=4, **sizes)  # 257 tokens
    transformers.CLIPVisionModel(config).save_pretrained(folder / "image_encoder")
    square = {"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}}
    transformers.CLIPImageProcessor(**square).save_pretrained(folder / "image_processor")


@of("docs/how-to/compile.md")
def compiled(reader: Reader, _: Shared) -> None:
    pictures(reader.folder / "clips", ["a.png", "b.png"], caption="a kite")
    clips(reader.folder / "clips", ["c.mp4", "d.mp4"], (90, 160), "a kite")
    clips(reader.folder / "clips", ["e.mp4", "f.mp4"], (96, 96), "a kite", num_frames=5)
    entries = [{"resolution": "720p", "num_frames": [1, 5, 9], "batch_size": 1}]
    own = {"buckets": {"aspect_ratios": None}, "train": {"compile": True}, "validation": {"split": 0.0}}
    text = recipe(bucket=entries, **own)
    reader.writes("recipe.toml", text)
    reader.types("reelworks plan recipe.toml")
    reader.reads()


@of("docs/how-to/evaluate.md")
def evaluate(reader: Reader, _: Shared) -> None:
    small_clips(reader)
    skipped = {"max_steps": 1000, "skip_steps": [[3, 1000]]}  # only their numbers matter
    held_out = {"validation": {"split": 0.5}, "buckets": {"aspect_ratios": ["1:1"]}}  # of two buckets, as on the page
    reader.writes("shapes.toml", recipe(output="runs/shapes", train=skipped, **held_out))
    reader.types("reelworks train shapes.toml")
    for folder in ("made", "real"):
        clips(reader.folder / folder, [f"{i}.mp4" for i in range(4)], (64, 64), "waves")
    clip_model(reader.folder / "models/clip-vit-large-patch14")
    reader.writes("metrics.py", reader.block("class Brightness"))
    wanted = [{"prompt_en": f"waves {i}", "dimension": ["subject_consistency"]} for i in range(2)]
    reader.writes("VBench_full_info.json", json.dumps(wanted))
    reader.writes("VBench/evaluation_results/NAME_eval_results.json", '{"subject_consistency": [0.9, []]}')
    reader.reads()
    assert len(list((reader.folder / "vbench").glob("waves *-?.mp4"))) == 10
    assert "brightness" in reader.printed
    assert "vbench/subject_consistency" in reader.types("reelworks checkpoints ls runs/shapes")


def clip_model(folder: Path) -> None:
    """Write a tiny CLIP of random weights, with its tokenizer and image processor, in the layout of transformers."""
    import transformers

    text = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        text_config=text | {"vocab_size": 80, "max_position_embeddings": 16, "eos_token_id": 1, "pad_token_id": 0},
        vision_config=text | {"image_size": 32, "patch_size": 8},
        projection_dim=12,
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    tiny_families.tokenizer().save_pretrained(folder)
    sizes = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    transformers.CLIPImageProcessor(**sizes).save_pretrained(folder)


@of("docs/how-to/free-disk-space.md")
def free_disk_space(reader: Reader, _: Shared) -> None:
    small_clips(reader)
    kept = {"every_steps": 50, "keep_last": 3}
    reader.writes("recipe.toml", recipe(output="runs/first", train={"max_steps": 100}, checkpoints=kept))
    reader.types("reelworks train recipe.toml")
    reader.reads()
    assert [path.name for path in (reader.folder / "runs/first/checkpoints").glob("step-*")] == ["step-000000100"]
    assert (reader.folder / "first.safetensors").is_file()


@of("docs/how-to/generate.md")
def generate(reader: Reader, shared: Shared) -> None:
    shared.footage(reader)
    demo = "reelworks train recipes/first-run.toml --data-path footage --output runs/first"
    reader.types(f"{demo} --max-steps 30 --set 'samples.prompts=[]'")
    reader.reads()
    assert shown(reader.folder / "red.mp4") == (17, 64, 96)
    assert shown(reader.folder / "still-01.png")[0] == 1
    assert shown(reader.folder / "long.mp4")[0] > 17


@of("docs/how-to/load-weights.md")
def load_weights(reader: Reader, _: Shared) -> None:
    sparse_file(reader.folder / "wan.safetensors", weights.shapes_of(identify.network("wan-2.1-1.3b").state_dict()))
    small_clips(reader, "photos")
    reader.writes("other.toml", recipe("photos", model={"name": "stdit3-xl", "weights": "wan.safetensors"}))
    reader.types("reelworks train other.toml", code=2)
    reader.writes("photos.toml", recipe("photos", "runs/photos"))
    reader.types("reelworks train photos.toml")
    reader.reads()
    assert "runs/next" in reader.printed


def sparse_file(path: Path, shapes: Mapping[str, Sequence[int]]) -> None:
    """Write a file of bfloat16 zeros that takes no disk, however large its tensors are."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


@of("docs/how-to/loss-spikes.md")
def loss_spikes(reader: Reader, _: Shared) -> None:
    two = {"bucket": [{"resolution": "32px", "num_frames": 5, "batch_size": 2}], "validation": {"split": 0.0}}
    # Three grey clips are shown often, a white one once in each epoch: its numbers are far from those that are usual.
    for i, grey in enumerate((120, 128, 136, 255)):
        path = reader.folder / ("shots" if i < 3 else "glare/shots") / f"{i:04}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        writers.write_video(path, np.full((9, 32, 32, 3), grey, np.uint8), 24.0)
        path.with_suffix(".txt").write_text("a kite", encoding="utf-8")
    spiky: dict[str, Any] = {
        "dataset": [{"path": "shots", "repeats": 14}, {"path": "glare"}],
        "autoencoder": {"std": 0.1},
    }
    saved = {"train": {"max_steps": 50}, "checkpoints": {"every_steps": 10, "keep_last": 9}}
    reader.writes("spiky.toml", recipe(**two, **spiky, **saved))
    reader.types("reelworks train spiky.toml")
    # Two kept checkpoints, the older one before the step that the page names; most steps are only numbers.
    long = {"max_steps": 1206, "skip_steps": [[3, 1200]]}
    reader.writes("recipe.toml", recipe("shots", "RUN", **two, train=long, checkpoints={"every_steps": 1000}))
    reader.types("reelworks train recipe.toml")
    reader.reads()
    assert "step 1204 is skipped" in reader.printed.rpartition("resumed from step 1000")[2]


@of("docs/how-to/measure-batch-sizes.md")
def measure_batch_sizes(reader: Reader, _: Shared) -> None:
    small_clips(reader)
    reader.writes("recipe.toml", recipe(output="runs/first", train={"max_steps": 16}))
    reader.types("reelworks train recipe.toml")
    for line in ("reelworks tune recipe.toml --step-seconds 2", "reelworks tune recipe.toml --memory 24"):
        reader.adds[line] = "--max-batch 2"
    reader.reads()
    tables = tomllib.loads(reader.block('tuned = "recipe.tuned.json"'))
    entries = [{"resolution": "32px", "num_frames": [1, 5], "batch_size": tables["bucket"][0]["batch_size"]}]
    text = recipe(output="runs/tuned", bucket=entries, buckets=tables["buckets"], cost=tables["cost"])
    reader.writes("tuned.toml", text)
    reader.types("reelworks plan tuned.toml")
    reader.types("reelworks plan recipe.toml --set cost.measured=recipe.costs.json")


@of("docs/how-to/mirror.md")
def mirror(reader: Reader, _: Shared) -> None:
    import s3fs

    small_clips(reader)
    reader.knows(**s3_server.CREDENTIALS)
    with s3_server.serve() as address:
        place = tomllib.loads(reader.block("[checkpoints.mirror]"))["checkpoints"]["mirror"]
        options = tomllib.loads(reader.block("options = {").replace("https://storage.example.org", address))
        storage = s3fs.S3FileSystem(**options["options"], **s3_keys())
        storage.mkdir("bucket")
        text = recipe(output="runs/first", checkpoints={"mirror": place | options})
        reader.writes("recipe.toml", text)
        reader.types("reelworks train recipe.toml")
        shutil.rmtree(reader.folder / "runs")
        reader.types("reelworks train recipe.toml --max-steps 6")
        reader.reads()


def s3_keys() -> dict[str, str]:
    """Return the credentials of the server on this machine as s3fs takes them."""
    return {"key": s3_server.CREDENTIALS["AWS_ACCESS_KEY_ID"], "secret": s3_server.SECRET}


@of("docs/how-to/resume-after-changes.md")
def resume_after_changes(reader: Reader, shared: Shared) -> None:
    shared.footage(reader)
    demo = reader.folder / "recipes/first-run.toml"
    quick = demo.read_text(encoding="utf-8").replace(
        'name = "stdit3-tiny"', 'name = "stdit3-tiny"\nhidden_size = 32\nnum_heads = 2'
    )
    quick = re.sub(r"(?s)prompts = \[.*?\n\]", "prompts = []", quick)
    quick = re.sub(r"timesteps = .*", "timesteps = [500.0]", quick)
    demo.write_text(
        re.sub(r"(?m)^every_steps = 200\nkeep_last", "every_steps = 100\nkeep_last", quick), encoding="utf-8"
    )
    train = "reelworks train recipes/first-run.toml --data-path footage --output runs/first"
    reader.types(f"{train} --max-steps 60")
    reader.types(f"{train} --max-steps 61 --set train.threads=1")
    reader.types(f"{train} --max-steps 62 --set train.threads=2")
    reader.types(f"{train} --max-steps 63 --set train.micro_batches_per_step=4")
    begin_again(reader, f"{train} --max-steps 8")
    more = [path.name for path in sorted((reader.folder / "footage").glob("*-circle-*.mp4"))[:3]]
    for i, name in enumerate(more):
        shutil.copy(reader.folder / "footage" / name, reader.folder / "footage" / f"new-{i}.mp4")
        reader.writes(f"footage/new-{i}.txt", f"a new circle, {i}")
    (reader.folder / "footage" / more[0]).unlink()
    reader.writes(f"footage/{Path(more[1]).stem}.txt", "another caption")
    changed = "--set 'bucket.0.batch_size=[16,4,2,2]' --set train.learning_rate=5e-4"
    reader.types(f"{train} --max-steps 10 {changed}")
    for name in "ab":
        reader.types(f"{train} --max-steps 12 --set dataset.0.name={name}")
    reader.reads(until="## From an earlier step")
    begin_again(reader, f"{train} --max-steps 103")
    reader.reads(until="## Begin the data again")
    begin_again(reader, f"{train} --max-steps 8")
    shutil.copytree(reader.folder / "runs/first", reader.folder / "runs/copy")
    reader.reads(until="A scheduler may repeat")
    copied = f"{train.replace('runs/first', 'runs/copy')} --max-steps 16 --restart-data"
    log = reader.folder / "runs/copy/events.jsonl"
    preempted = when(lambda: '"kind": "step", "step": 9' in log.read_text(encoding="utf-8"), signal.SIGTERM)
    reader.types(copied, code=75, meanwhile=preempted)
    reader.types(copied)
    reader.reads(until="With `--weights-only`, the optimizer")
    loaded = "reelworks train recipes/first-run.toml --data-path footage --output runs/tuned --load runs/first"
    reader.types(f"{loaded} --max-steps 4")
    reader.reads()


def begin_again(reader: Reader, line: str) -> None:
    """Train without the former runs."""
    shutil.rmtree(reader.folder / "runs", ignore_errors=True)
    reader.types(line)


@of("docs/how-to/several-gpus.md")
def several_gpus(reader: Reader, shared: Shared) -> None:
    shared.footage(reader)
    reader.writes(
        "RECIPE",
        (reader.folder / "recipes/first-run.toml").read_text(encoding="utf-8").replace("demo/footage", "footage"),
    )
    log = reader.folder / "runs/two/events.jsonl"

    def trains(starts: int) -> bool:
        told = log.read_text(encoding="utf-8") if log.is_file() else ""
        return told.count('"kind": "start"') == starts and '"kind": "step"' in told.rpartition('"kind": "start"')[2]

    # The demo trains for 1200 steps: the reader stops it after the first ones, as the page says.
    for starts, begin, code in ((1, "reelworks train", 75), (2, "torchrun", 1)):
        reader.meanwhile[begin] = when(partial(trains, starts), signal.SIGTERM)
        reader.codes[begin] = code
    reader.reads(until="```text\nerror: train.micro_batches_per_step")
    typed = "reelworks train recipes/first-run.toml --data-path footage --output runs/two"
    reader.types(f"{typed} --nproc-per-node 3", code=2)
    small_clips(reader)
    reader.writes("recipe.toml", recipe(output="runs/tuned"))
    before = len(reader.printed)
    reader.reads()
    assert re.search(r'"kind": "stop".*"reason": "signal"', reader.printed[before:])


@of("docs/how-to/store-latents.md")
def store_latents(reader: Reader, _: Shared) -> None:
    small_clips(reader)
    table = tomllib.loads(reader.block("[encode]"))
    reader.writes("recipe.toml", recipe(output="runs/first", **table))
    reader.reads()
    assert (reader.folder / "sheet.png").is_file()
    assert "encoded" not in reader.types("reelworks train recipe.toml")


@of("docs/how-to/publish.md")
def publish(reader: Reader, _: Shared) -> None:
    (reader.folder / "runs").mkdir()
    base = "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"
    made = published_run.make(reader.folder / "made", weights=base, on_hub={"model.weights": f"{base}@{'a' * 40}"})
    made.path.rename(reader.folder / "runs" / "mug")
    with fake_hub.serving(Uploads(reader.folder / "hub", {"hf_anna": Account("anna")})) as hub:
        reader.knows(HF_ENDPOINT=hub.address, HF_HUB_DISABLE_XET="1", HF_TOKEN="hf_anna")
        reader.reads()
        assert [(commit.repository, len(commit.paths)) for commit in hub.uploads.commits] == [
            ("anna/mug", 5),
            ("anna/mug-for-all", 7),
        ]
        assert hub.uploads.private == {"anna/mug"}


@of("docs/how-to/caption.md")
def caption(reader: Reader, _: Shared) -> None:
    pictures(reader.folder / "my-pictures", [f"{i}.png" for i in range(5)])
    for folder in ("clips", "footage"):
        clips(reader.folder / folder, ["a.mp4", "b.mp4"])
    reader.writes("meta.csv", "path,text\nclips/a.mp4,\nclips/b.mp4,waves\n")
    reader.writes("my_captioner.py", reader.block("import json"))
    with fake_hub.serving() as hub, caption_server.serving(Served(caption_server.said("Waves on a beach."))) as server:
        hub.put("Qwen/Qwen2.5-VL-3B-Instruct", tiny_vlm.llava(reader.folder / "release"))
        reader.knows(HF_ENDPOINT=hub.address, HF_HUB_DISABLE_XET="1")
        reader.names["URL"] = server
        reader.reads(until="## The record")
        assert (reader.folder / "clips/a.txt").read_text(encoding="utf-8") == "Waves on a beach.\n"
        assert (reader.folder / "footage/a.txt").read_text(encoding="utf-8") == "A video of 8 frames\n"
        assert (reader.folder / "my-pictures/4.txt").read_text(encoding="utf-8").startswith("rwmug, word")
        reader.reads()
    assert not (reader.folder / "clips/a.txt").exists()


@of("docs/how-to/train-a-lora.md")
def train_a_lora(reader: Reader, _: Shared) -> None:
    here, twenty = reader.folder, [f"mug-{i:02}.jpg" for i in range(20)]
    pictures(here / "pictures", twenty, (1024, 1024), "rwmug")
    reader.reads(until="3.  Train. Every picture")
    # From here on the published Wan is as small as the pipeline that a hub on this machine serves in its place.
    shutil.rmtree(here / "pictures")
    pictures(here / "pictures", twenty[:4], (64, 64), "rwmug")
    tiny_families.write("wan-tiny", here / "release")
    with fake_hub.serving() as hub:
        hub.put("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", here / "release")
        reader.knows(HF_ENDPOINT=hub.address, HF_HUB_DISABLE_XET="1")
        reader.shrinks(Path(__file__).with_name("shrunk_reelworks.py"))
        (here / "mug.toml").unlink()
        (new,) = [words for words in pages.commands(reader.page) if words[1] == "new"]
        reader.types(shlex.join(new))
        for line in ("reelworks train mug.toml", "reelworks train --data pictures"):
            reader.adds[line] = "--max-steps 2 --set samples.num_inference_steps=2"
        reader.reads(until="Without `--data`, `reelworks new lora")
        shutil.copy(here / "mug.toml", here / "RECIPE")
        (here / "mug.toml").unlink()
        reader.names["NAME"] = "wan"
        reader.reads()
    assert (here / "mug.safetensors").is_file()
    assert (here / "merged.safetensors").is_file()


@of("docs/how-to/lora-files.md")
def lora_files(reader: Reader, _: Shared) -> None:
    here = reader.folder
    small_clips(reader)
    tiny_families.write("wan-tiny", here / "wan")
    state = load_file(here / "wan/transformer/diffusion_pytorch_model.safetensors")
    save_file({key: value + 0.01 * value.abs() for key, value in state.items()}, here / "tuned.safetensors")
    trained = {"train": {"max_steps": 6}, "checkpoints": {"every_steps": 2, "keep_last": 5}}
    for name, seed in (("mug", 0), ("style", 1)):
        text = recipe(output=f"runs/{name}", model={"name": "wan-tiny"}, lora={"rank": 4}, seed=seed, **trained)
        reader.writes(f"{name}.toml", text)
        reader.types(f"reelworks train {name}.toml")
        reader.types(f"reelworks checkpoints export runs/{name} -o {name}.safetensors --format kohya")
    reader.reads()
    assert len(list((here / "wan-mug").glob("*.safetensors"))) == 1
    assert "ComfyUI" in reader.printed


@of("docs/how-to/use-the-page.md")
def use_the_page(reader: Reader, _: Shared) -> None:
    answers = []

    def opens(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "http://127.0.0.1:" in line)
        address = line[line.index("http://") :].split()[0]
        assert "#token=" in address
        with urllib.request.urlopen(address.partition("#")[0]) as answer:
            answers.append(answer.status)
        process.send_signal(signal.SIGINT)

    (reader.folder / "FOLDER").mkdir()
    reader.meanwhile["reelworks ui FOLDER --end-jobs"] = lambda process: None
    reader.meanwhile["reelworks ui"] = opens
    reader.reads()
    assert answers == [200]
    assert "nothing runs of the queue" in reader.printed


@of("docs/how-to/watch-a-run.md")
def watch_a_run(reader: Reader, _: Shared) -> None:
    small_clips(reader)
    # An epoch is one step, of all pictures and all videos: its line tells two buckets, as that of the page does.
    whole = {"resolution": "32px", "num_frames": [1, 5], "batch_size": [8, 4]}
    two = {"bucket": [whole], "buckets": {"aspect_ratios": ["1:1"]}}
    for name in ("first", "second"):
        several = {"gradient_accumulation_steps": 2, "max_steps": 22}
        reader.writes("recipe.toml", recipe(output=f"runs/{name}", train=several, **two))
        reader.types("reelworks train recipe.toml")
    (reader.folder / "RUN").symlink_to("runs/first")
    reader.writes("recipe.toml", recipe(output="runs/third", train={"max_steps": 22}))
    reader.reads()
    assert (reader.folder / "runs/third/profiles/steps-10-20.json.gz").is_file()
    assert (reader.folder / "comparison.html").is_file()


@of("docs/how-to/know-your-data.md")
def know_your_data(reader: Reader, _: Shared) -> None:
    small_clips(reader, "footage")
    small_clips(reader)
    reader.writes("warmth.py", reader.block("class Warmth"))
    reader.writes("RECIPE", recipe(output="RUN"))
    TINY["clip"](reader.folder / "models/clip-vit-large-patch14")
    save_classifier(reader.folder / "models/watermark-detector")
    reader.types("reelworks scan clips -o CATALOG")
    reader.reads()
    assert "warmth" in reader.printed
    assert "what a limit at a percentile" in reader.printed


@of("docs/how-to/why-not-trained.md")
def why_not_trained(reader: Reader, shared: Shared) -> None:
    shared.footage(reader)
    clips(reader.folder / "cats", ["tom.mp4", "kit.mp4", "tim.mp4"], caption="a cat")
    clips(reader.folder / "cats", ["mute.mp4"])
    reader.writes("cats.toml", recipe("cats", "RUN", validation={"split": 0.0}))
    reader.types("reelworks train cats.toml")
    reader.reads()
    assert "mute.mp4" in (reader.folder / "left-out.csv").read_text(encoding="utf-8")


@of("docs/how-to/choose-a-checkpoint.md")
def choose_a_checkpoint(reader: Reader, _: Shared) -> None:
    small_clips(reader)
    shown = {"prompts": ["waves"], "num_frames": 5, "height": 32, "width": 32, "num_inference_steps": 1}
    kept = {"every_steps": 1, "keep_last": 9}
    reader.writes("mug.toml", recipe(output="runs/mug", samples=shown, checkpoints=kept, train={"max_steps": 4}))
    reader.types("reelworks train mug.toml")
    (reader.folder / "RUN").symlink_to("runs/mug")
    reader.reads()
    assert "the best by that metric" in reader.printed
    assert "waves" in (reader.folder / "mug.html").read_text(encoding="utf-8")


@of("docs/how-to/what-was-learnt.md")
def what_was_learnt(reader: Reader, _: Shared) -> None:
    small_clips(reader)
    reader.writes("mug.toml", recipe(output="runs/mug", train={"max_steps": 8, "clip_losses": "auto"}))
    reader.types("reelworks train mug.toml")
    (reader.folder / "RUN").symlink_to("runs/mug")
    reader.reads()
    assert "too early" in reader.printed
