"""From folders and the name of a model to a recipe with reasons, and to a training."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from refused import refused
from safetensors.torch import save_file
from typer.testing import CliRunner

from reelworks.commands import new
from reelworks.commands.main import app
from reelworks.core.errors import UserError
from reelworks.core.shape import Geometry
from reelworks.data.buckets import propose
from reelworks.data.catalog.config import DatasetConfig
from reelworks.data.loader import decode_requests
from reelworks.data.loader.left_out import by_reason
from reelworks.data.run import events
from reelworks.data.run.folder import RunFolder
from reelworks.models import components, registry
from reelworks.quickstart import recipe_lines
from reelworks.quickstart.request import FootageRequest
from reelworks.quickstart.survey import PLACEHOLDER, PLACEHOLDER_CLIPS, FolderSurvey
from reelworks.quickstart.trained_sizes import TrainedSizes
from reelworks.training.plan import rejections
from reelworks.training.recipe import recipe_file, toml_writer
from reelworks.training.recipe.dataset import RecipeData

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Commands are given in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pictures(folder: str, count: int = 5, caption: str | None = "a cup", size=(96, 64)) -> Path:
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        Image.new("RGB", size if i % 2 else size[::-1], (40 * i % 256, 90, 20)).save(path / f"{i}.png")
        if caption is not None:
            (path / f"{i}.txt").write_text(f"{caption} {i}", encoding="utf-8")
    return path


def reelworks(*arguments: str):
    done = CliRunner().invoke(app, list(arguments))
    if isinstance(done.exception, UserError):
        return str(done.exception)
    assert done.exit_code == 0, done.output
    return done.output


def make(*arguments: str, model: str = "wan-tiny"):
    """The verb's recipe."""
    told = json.loads(reelworks("new", "lora", "--model", model, "--json", *arguments))
    return recipe_file.load(Path(told["path"])), told


def test_clips_are_read_at_the_rate_of_a_model_that_has_one() -> None:
    found = FolderSurvey(np.zeros((0, 2), np.int64), np.array([[20, 64, 64], [40, 64, 64]]), showings=2)
    dataset = DatasetConfig(path="clips")
    rates = {
        model: [line.value for line in recipe_lines.lora_table(model, [dataset], found) if line.key == "fps"]
        for model in ("wan-tiny", "ltx-tiny", "stdit3-tiny")
    }
    assert rates == {"wan-tiny": ["model"], "ltx-tiny": ["model"], "stdit3-tiny": []}
    text = toml_writer.write("", recipe_lines.lora_table("wan-tiny", [dataset], found))
    assert recipe_file.parse({"output": "runs/a"} | tomllib.loads(text)).data.fps == 16.0


def test_train_writes_a_recipe_trains_it_and_resumes_by_the_same_command():
    """One command from pictures to a LoRA; once more goes on, and leaves the recipe as a person edited it."""
    pictures("mug", caption=None)
    quick = ("--set", "samples.num_inference_steps=2")
    command = ("train", "--data", "mug", "--model", "wan-tiny", "--trigger", "rwmug", *quick)
    told = reelworks(*command, "--max-steps", "1")
    assert "5 pictures, 5 without a caption" in told
    assert told.count("loading the text encoder") == 1  # for captions and prompts
    file = Path("mug-wan-tiny.toml")
    edited = file.read_text(encoding="utf-8") + "\n# mine\n"
    file.write_text(edited, encoding="utf-8")
    reelworks(*command, "--max-steps", "2")
    assert file.read_text(encoding="utf-8") == edited
    steps = [e["step"] for e in events.timeline(RunFolder(Path("runs/mug-wan-tiny")).events_file, "step")]
    assert steps == [1, 2]


def test_a_recipe_follows_from_its_folders_and_is_never_written_over():
    """The same command gives the same bytes; a recipe that is there needs --force."""
    pictures("mug")
    made, told = make("--data", "mug")
    text = Path(told["path"]).read_text(encoding="utf-8")
    assert "the recipe exists already" in reelworks("new", "lora", "--model", "wan-tiny", "--data", "mug")
    assert make("--data", "mug", "--force")[0] == made
    assert Path(told["path"]).read_text(encoding="utf-8") == text
    assert made.dataset == [DatasetConfig(path="mug")]
    assert (told["pictures"], told["clips"], told["fits"]) == (5, 0, None)


def test_folders_of_kohya_become_datasets_with_repeats_and_their_words_as_caption():
    """`10_mug cup`: ten showings, and "mug cup" where there is no text file; loose files beside them are named."""
    pictures("set/10_mug cup", caption=None)
    pictures("set/2_bowl")
    pictures("set", count=1)
    made, told = make("--data", "set", "--trigger", "rw{x}")
    cup, bowl = made.dataset
    assert (cup.path, cup.repeats, cup.missing_caption) == ("set/10_mug cup", 10, "mug cup")
    assert (bowl.path, bowl.repeats, bowl.missing_caption) == ("set/2_bowl", 2, "bowl")
    assert {cup.trigger, bowl.trigger} == {"rw{x}"}
    assert any("1 file" in remark for remark in told["remarks"])


@pytest.mark.parametrize("trigger", ["rwmug", "rw{mug}"])
def test_the_trigger_word_is_in_every_caption_once(trigger):
    """In those that have it, those that lack it, the words of a folder's name, those of no text file, and prompts of previews."""
    for folder, caption in (("mug", f"a {trigger} cup"), ("mug2", "a cup"), ("mug3", None), ("set/1_mug", None)):
        pictures(folder, 2, caption)
    made, _ = make("--data", "mug", "--data", "mug2", "--data", "mug3", "--data", "set", "--trigger", trigger)
    data = RecipeData.open(made)
    shown = decode_requests.captions_of(data, np.arange(len(data.rows)), np.arange(len(data.rows), dtype=np.uint64))
    assert sorted(shown) == sorted(
        [f"a {trigger} cup 0", f"a {trigger} cup 1", f"{trigger} a cup 0", f"{trigger} a cup 1"]
        + [trigger] * 2
        + [f"{trigger} mug"] * 2
    )
    assert made.samples.prompts == [trigger, f"a {trigger} cup 0", f"a {trigger} cup 1"]


def test_the_next_commands_can_be_typed_as_they_are_told():
    """A folder's name with blanks, quotes and signs of a shell is one word of the command."""
    pictures("it's #1 $x")
    told = reelworks("new", "lora", "--model", "wan-tiny", "--data", "it's #1 $x")
    command = next(line for line in told.splitlines() if line.startswith("  reelworks train"))
    assert shlex.split(command)[2:] == ["it's #1 $x-wan-tiny.toml"]
    assert recipe_file.load(Path("it's #1 $x-wan-tiny.toml")).dataset[0].path == "it's #1 $x"


def test_codes_of_a_file_are_kept_as_they_are(tmp_path):
    """fp8, int8 and nf4 by the header, GGUF by its first bytes; the other parts are those of the release."""
    fp8, plain = torch.zeros(8, 8).to(torch.float8_e4m3fn), torch.zeros(4)
    save_file({"a.weight": torch.zeros(8, 8).to(torch.int8), "a.bias": plain}, "int8.safetensors")
    save_file({"a.weight": fp8, "a.bias": plain}, "fp8.safetensors")
    save_file({"a.weight": plain, "a.weight.quant_state.bitsandbytes__nf4": plain.clone()}, "nf4.safetensors")
    save_file({"a.weight": plain}, "plain.safetensors")
    Path("codes.gguf").write_bytes(b"GGUF and more")
    Path("damaged.safetensors").write_bytes(b"no header")
    found = {}
    for file in sorted(tmp_path.iterdir()):
        lines = recipe_lines.lora_table("wan-2.1-1.3b", [DatasetConfig(path="p")], PLACEHOLDER, weights=file.name)
        values = {(line.table, line.key): line.value for line in lines}
        assert values["[model]", "weights"] == file.name
        assert values["[autoencoder]", "weights"] == "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"
        found[file.stem] = values.get(("[lora]", "base"))
    assert found == {"fp8": "float8", "int8": "int8", "nf4": "nf4", "codes": "gguf", "plain": None, "damaged": None}
    made, told = make("--weights", "fp8.safetensors", "--vram", "16", model="wan-2.1-1.3b")
    assert (made.lora.base, told["estimate"]["memory"]["base"]) == ("float8", 1_449_855_104)


def test_a_run_is_saved_some_ten_times():
    """By the steps that the recipe has, which follow from its buckets."""
    pictures("mug", 10)  # two shapes of five: more batches than ten by one size would be
    recipe, told = make("--data", "mug")
    assert recipe.checkpoints.every_steps == told["steps"] // 10 > 10


def test_memory_without_end_is_no_size():
    done = CliRunner().invoke(app, ["new", "lora", "--model", "wan-tiny", "--vram", "inf"])
    assert done.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "fluxx", "--data", "mug"), 'did you mean "flux"'),
        (("--model", "wan-tiny", "--data", "nothing"), "there is no such folder"),
        (("--model", "wan-tiny", "--data", "empty"), "contains no videos or pictures"),
        (("--model", "wan-tiny", "--data", "silent"), "--trigger WORD"),
        (("--model", "wan-tiny", "--data", "mug", "--data", "./empty/../mug"), "it is given twice"),
        (("--model", "wan-tiny", "--data", "mug", "--data", "."), "lies in the other"),
        (("--model", "stdit3-3b", "--data", "mug"), "--weights PATH|HUB"),
        (("--model", "flux-control", "--data", "mug", "--control", "mug"), "--weights PATH|HUB"),
        (("--model", "qwen-image-edit", "--data", "mug"), "--source DIR"),
        (("--model", "wan", "--data", "mug", "--source", "mug"), "wan-2.1-1.3b does not take a source"),
        (("--model", "WAN-Tinny", "--data", "mug"), 'did you mean "wan-tiny"'),
        (("--model", "wan", "--data", "mug", "--vram", "1"), "a GPU of at least"),
        (("--model", "wan-tiny", "--data", "silent", "--trigger", " "), "the word is empty"),
        (("--model", "wan-tiny", "--data", "mug", "-o", "mug", "--force"), "cannot be written (Is a directory)"),
    ],
)
def test_a_mistake_is_told_with_a_way_out_and_leaves_no_recipe(arguments, said):
    """Nothing is written that could not be trained."""
    pictures("mug")
    pictures("silent", caption=None)
    Path("empty").mkdir()
    told = reelworks("new", "lora", *arguments)
    assert said in told
    assert "remedy" in told
    assert not list(Path().glob("*.toml"))


@pytest.mark.parametrize("preset", [name for name in registry.PRESETS if registry.release_of(name).weights])
def test_the_recipe_of_every_published_model_is_sound(preset):
    """Names, sizes, objective and buckets fit together for pictures, and where it takes them for clips."""
    sound = registry.PRESETS[preset].sound is not None
    found = PLACEHOLDER_CLIPS if sound else PLACEHOLDER
    clips = registry.release_of(preset).lines > 0
    if clips and not sound:
        found = FolderSurvey(found.pictures, np.array([[130, 720, 1280], [40, 480, 854]]), showings=22)
    companions = dict.fromkeys(registry.PRESETS[preset].config.conditioning.companions.needs, "c")
    lines = recipe_lines.lora_table(preset, [DatasetConfig(path="p", **companions)], found)
    made = recipe_file.parse({"output": "r", **tomllib.loads(toml_writer.write("", lines))})
    assert made.model.weights == registry.release_of(preset).weights
    assert made.autoencoder.name == registry.PRESETS[preset].parts.autoencoder
    assert made.dataset[0].companions == companions
    assert len(made.bucket) == (not sound) + clips
    guides_itself = components.conditioning(made.model).guidance == "classifier-free"
    is_guided = guides_itself and registry.PRESETS[preset].sampling.guidance_scale != 1.0
    assert made.objective.caption_dropout == 0.1 * is_guided  # a pass without caption is learned where one is asked for


@pytest.mark.parametrize(
    ("preset", "given"),
    [
        ("wan-2.1-vace-1.3b", {"control": "c", "mask": "m"}),
        ("flux2-klein-base-4b", {"source": ["a", "b"], "loss_mask": "l"}),
        ("flux-dev", {"rejected": "r"}),
    ],
)
def test_every_companion_that_is_given_is_written(preset, given):
    dataset = DatasetConfig(path="p", **given)
    lines = recipe_lines.lora_table(preset, [dataset], PLACEHOLDER)
    made = recipe_file.parse({"output": "r", **tomllib.loads(toml_writer.write("", lines))})
    assert made.dataset[0].companions == dataset.companions


def test_the_recipe_that_comes_with_the_project_is_what_the_verb_writes():
    """A change of the verb shows in it, or it is made again: `reelworks new lora --model wan -o ...`."""
    lines = recipe_lines.lora_table("wan-2.1-1.3b", [DatasetConfig(path=recipe_lines.PLACEHOLDER)], PLACEHOLDER)
    text = toml_writer.write(f"A LoRA of {PLACEHOLDER.to_text()} on wan-2.1-1.3b.", lines)
    assert (RECIPES / "lora-20-pictures.toml").read_text(encoding="utf-8") == text


def test_a_few_thumbnails_do_not_make_all_small_and_are_named() -> None:
    """The bulk chooses the size of pictures and of clips, and those below it are told with what becomes of them."""
    pictures = np.array([[1200, 1500]] * 20 + [[96, 128]] * 3)
    clips = np.array([[81, 480, 854]] * 8 + [[81, 144, 256]] * 2)
    few, all_ = (
        FolderSurvey(
            p, v, len(p) + len(v), 0, tuple(f"p{i:02}" for i in range(len(p))), tuple(f"v{i}" for i in range(len(v)))
        )
        for p, v in ((pictures[:20], clips[:8]), (pictures, clips))
    )
    preset = "wan-2.1-1.3b"
    sizes = [
        [
            line.value
            for line in recipe_lines.lora_table(preset, [DatasetConfig(path="p")], found, "word")
            if line.key == "resolution"
        ]
        for found in (few, all_)
    ]
    assert sizes[0] == sizes[1]
    assert [size.remarks() for size in TrainedSizes.choose(preset, few).filled] == [[], []]
    (of_pictures,), (of_clips,) = (size.remarks() for size in TrainedSizes.choose(preset, all_).filled)
    assert of_pictures.startswith("3 of 23 pictures are smaller than")
    assert of_pictures.endswith("p20 (128 × 96), p21 (128 × 96), p22 (128 × 96)")
    assert of_clips.startswith("2 of 10 clips are smaller than")
    assert of_clips.endswith("v8 (256 × 144), v9 (256 × 144)")


def test_what_is_said_of_a_picture_is_what_the_plan_of_the_recipe_does_with_it() -> None:
    """One that fits no bucket, or that cannot be read, is left out with its reason; a small one is enlarged."""
    folder = pictures("mixed", count=6)
    Image.new("RGB", (24, 16)).save(folder / "small.png")
    Image.new("RGB", (4000, 8)).save(folder / "wide.png")
    (folder / "broken.png").write_bytes(b"no picture")
    told = " ".join(
        reelworks("new", "lora", "--model", "wan-tiny", "--data", "mixed", "--trigger", "cup", "-o", "m.toml").split()
    )
    plan = RecipeData.open(recipe_file.load(Path("m.toml")))
    left_out = rejections.named(plan, by_reason(*plan.assignment(0)))
    assert {reason: [clip.path for clip in clips] for reason, clips in left_out.items()} == {
        "unreadable": ["mixed/broken.png"],
        "no_bucket": ["mixed/wide.png"],
    }
    assert re.search(
        r"1 of 8 pictures is smaller than .* enlarged or cropped, .* mixed/small\.png \(24 × 16\) left out:", told
    )
    assert re.search(r"left out: mixed/broken\.png \(unreadable: .*\), mixed/wide\.png \(no_bucket: .*4000 × 8", told)
    chosen = ["--set", "dataset.0.filter=not contains(path, 'wide')"]
    told = reelworks(
        "new", "lora", "--model", "wan-tiny", "--data", "mixed", "--trigger", "cup", "-o", "n.toml", *chosen
    )
    assert "broken.png" in told
    assert "wide.png" not in told, "it is left out on purpose"


def test_a_list_in_the_folder_is_named_where_captions_are_missing_and_told_where_they_are_not() -> None:
    """As that of a dataset of the hub, which is read where it is given itself."""
    folder = pictures("listed", count=2, caption=None)
    (folder / "metadata.csv").write_text("file_name,text\n0.png,a cup\n1.png,a bowl\n", encoding="utf-8")
    command = ("new", "lora", "--model", "wan-tiny", "-o", "m.toml", "--data")
    assert "with --data listed/metadata.csv, or give --trigger WORD" in " ".join(reelworks(*command, "listed").split())
    assert "files beside the clips: .csv (1)" in " ".join(reelworks(*command, "listed", "--trigger", "rwcup").split())
    assert "written: m.toml" in reelworks(*command, "listed/metadata.csv", "--force")


def test_a_folder_of_nothing_that_can_be_trained_is_told_as_such() -> None:
    """In words of the command, which has no buckets."""
    Path("alone").mkdir()
    Image.new("RGB", (4000, 8)).save("alone/wide.png")
    told = reelworks("new", "lora", "--model", "wan-tiny", "--data", "alone", "--trigger", "cup", "-o", "m.toml")
    problem, remedy = told.split("remedy:")
    assert "--data = 'alone': nothing in it can be trained: alone/wide.png (no_bucket: 1 frame of 4000 × 8" in problem
    assert "bucket" not in remedy
    assert not Path("m.toml").exists()


def test_clips_of_a_length_that_the_model_takes_keep_all_their_frames() -> None:
    """And with one frame less, those of the next shorter length."""
    rule = Geometry((1, 2, 2), (4, 8, 8))
    for shorter, count in itertools.pairwise(propose.frame_counts(rule).tolist()):
        assert recipe_lines._lengths(np.full(3, count), rule, 10**6) == [count]
        assert recipe_lines._lengths(np.full(3, count - 1), rule, 10**6) == [shorter]


def test_the_shortest_clips_have_a_length_that_they_fill() -> None:
    """However few they are, and however many others are longer."""
    videos = np.array([[81, 480, 854]] * 99 + [[17, 480, 854]])
    found = FolderSurvey(np.zeros((0, 2), np.int64), videos, len(videos))
    lines = recipe_lines.lora_table("wan-2.1-1.3b", [DatasetConfig(path="clips")], found, "word")
    (lengths,) = (line.value for line in lines if line.key == "num_frames" and line.table == "[[bucket]]")
    assert min(lengths) <= 17
    assert max(lengths) == 81


@pytest.mark.parametrize("rank", ["0", "1"])
def test_processes_that_were_started_together_write_no_recipe(rank, monkeypatch):
    """Not even the first one, whose recipe the others may or may not find."""
    pictures("mug")
    monkeypatch.setenv("LOCAL_RANK", rank)
    with refused("recipe-made-by-several-processes", "--data", says="mug"):
        new.recipe_for(FootageRequest(data=(Path("mug"),), model="wan-tiny"))
    assert not [*Path().glob("*.toml")]


def footage(*folders: str, **given) -> FootageRequest:
    return FootageRequest(data=tuple(map(Path, folders)), model="wan-tiny", **given)


@pytest.fixture(scope="module")
def with_recipe(tmp_path_factory) -> Path:
    """A folder with three folders of pictures, and the recipe of two of them."""
    with contextlib.chdir(tmp_path_factory.mktemp("made")):
        for folder in ("alice/mug", "bob/mug", "cups"):
            pictures(folder)
        make("--data", "alice/mug", "--data", "cups", "--trigger", "rwmug", "--vram", "24")
        return Path.cwd()


@pytest.mark.parametrize(
    ("other", "option", "both"),
    [
        (
            footage("bob/mug", "cups", trigger="rwmug"),
            "--data",
            "bob/mug, cups.*made with --data alice/mug --data cups",
        ),
        (footage("alice/mug", trigger="rwmug"), "--data", "'alice/mug'.*made with --data alice/mug --data cups"),
        (footage("alice/mug", "cups", trigger="bobmug"), "--trigger", "bobmug.*made with --trigger rwmug"),
        (footage("alice/mug", "cups", weights="a/b"), "--weights", "a/b.*made without --weights"),
        (footage("alice/mug", "cups", vram_gb=8.0), "--vram", "8.*made with --vram 24"),
    ],
)
def test_a_recipe_that_is_found_by_its_name_was_made_with_what_is_given(other, option, both, here, with_recipe):
    """However it was edited since; the command in the error makes one that is trained beside it."""
    shutil.copytree(with_recipe, here, dirs_exist_ok=True)
    file = Path("mug-wan-tiny.toml")
    made = recipe_file.load(file)
    file.write_text(file.read_text(encoding="utf-8").replace("[train]", "[train]\nseed = 3"), encoding="utf-8")
    assert new.recipe_for(footage("alice/mug", "cups", trigger="rwmug", vram_gb=24.0)) == file
    assert new.recipe_for(footage(str(here / "alice" / "mug"), "bob/../cups")) == file
    with refused("recipe-of-other-options", option, says=both) as caught:
        new.recipe_for(other)
    if option != "--weights":  # there are no such
        reelworks(*shlex.split(caught.value.remedy.partition("reelworks ")[2].partition(";")[0]))
        assert recipe_file.load(Path("other.toml")).output != made.output


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        (FootageRequest(), "RECIPE", "neither a recipe nor data"),
        (FootageRequest(data=(Path("mug"), Path("cups"))), "--model", "no model.*mug, cups"),
        (FootageRequest(model="wan-tiny", trigger="rwmug"), "--data", "no data.*wan-tiny"),
    ],
)
def test_what_is_missing_to_train_is_named(given, field, says):
    with refused("nothing-to-train", field, says=f"{says}.*--data DIR and --model NAME"):
        new.recipe_for(given)


def test_a_recipe_that_does_not_tell_how_it_was_made_is_not_found_by_its_name():
    pictures("mug")
    none = "no comment tells what it was made with"
    for line, why in {
        "": none,
        "# made with: {": none,
        "# made with: { --trigger = [] }": "made without --data",
    }.items():
        Path("mug-wan-tiny.toml").write_text(f"{line}\nversion = 1\n", encoding="utf-8")
        with refused("recipe-of-other-options", "--data", says=f"'mug'.*{why}"):
            new.recipe_for(footage("mug"))


def test_a_new_recipe_continues_no_run_of_another_folder():
    """But one of the same folder, or of several with it."""
    for folder in ("alice/mug", "bob/mug"):
        pictures(folder)
    made, told = make("--data", "alice/mug")
    run = RunFolder(Path(made.output))
    run.recipe_file.write_text(recipe_file.dump(made), encoding="utf-8")
    Path(told["path"]).unlink()
    catalog = sorted((file, file.stat().st_mtime_ns) for file in run.path.rglob("*"))
    with refused("run-of-other-footage", "data", says="bob/mug.*trained on alice/mug.*-o other.toml"):
        new.recipe_for(footage("bob/mug"))
    assert sorted((file, file.stat().st_mtime_ns) for file in run.path.rglob("*")) == catalog
    assert recipe_file.load(new.recipe_for(footage("alice/mug", "bob/mug"))).output == made.output
