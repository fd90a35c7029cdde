"""What arrives on the hub is what was written, whole or not at all, and tells nothing about who trained it.

The hub is a server on this machine that verifies what it gets; the client is the real one.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import fake_hub
import places
import plan_summaries
import published_run
import pytest
import tiny_families
import tiny_recipe
import torch
import yaml
from hub_uploads import Account, Refused, Uploads
from huggingface_hub import constants
from PIL import Image
from published_run import PERSON, PROMPT
from refused import refused
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from reelworks.annexes.hub import card, hub_repository, neutral, publish
from reelworks.annexes.hub.card import Licence
from reelworks.annexes.hub.request import PublishRequest
from reelworks.commands.main import app
from reelworks.core import files, toml, toml_none, units
from reelworks.core.config import Publish
from reelworks.data.run.config import LoggingConfig
from reelworks.data.run.events import EventLog
from reelworks.inference import previews
from reelworks.inference.generate import defaults, export_run
from reelworks.models.adapters.conventions import CONVENTIONS
from reelworks.models.base_model import Base
from reelworks.training.plan import plan_report
from reelworks.training.plan.plan_report import CatalogCounts
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe

# The client asks its own library in a way that this one has given up.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
NAME = "anna/mug"
BASE = "Wan-AI/Wan2.1-T2V-1.3B-Diffusers"


@pytest.fixture
def run(tmp_path):
    return published_run.make(tmp_path)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with three accounts, which the client's environment names; nobody but `anna` is logged in."""
    accounts = {
        "hf_anna": Account("anna", orgs=("cups",)),
        "hf_read": Account("anna", "read"),
        "hf_ben": Account("ben"),
    }
    with fake_hub.serving(Uploads(tmp_path / "hub", accounts)) as server:
        fake_hub.be_asked(server, tmp_path / "cache", monkeypatch)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setenv("HF_TOKEN", "hf_anna")
        yield server


def do(run, **asked):
    return publish.publish(PublishRequest(source=run.path, **({"to": NAME} | asked)))


def held(hub, name=NAME):
    """Content of each file that a repository holds, but for what the hub itself puts there."""
    folder = hub.repositories[name]["main"]
    found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return {path: data for path, data in found.items() if path != ".gitattributes"}


def front_matter(data: bytes):
    return yaml.safe_load(data.decode().split("---\n")[1])


def test_the_hub_holds_what_a_dry_run_writes(run, hub):
    """In one commit of a new private repository; nothing stays in the run folder."""
    formats = ("diffusers", "comfyui", "kohya")
    dry = do(run, formats=formats, dry_run=True, output=run.path.parent / "dry")
    assert (dry.url, dry.commit, hub.uploads.commits, hub.repositories) == (None, None, [], {})
    before = sorted(run.path.iterdir())
    done = do(run, formats=formats)
    written = {p.relative_to(dry.folder).as_posix(): p.read_bytes() for p in dry.folder.rglob("*") if p.is_file()}
    assert held(hub) == written
    assert {file.path: file.bytes for file in done.files} == {path: len(data) for path, data in written.items()}
    assert sorted(written) == [
        *("README.md", "mug-comfyui.safetensors", "mug-kohya.safetensors", "previews/00.png", "previews/01.mp4"),
        *("pytorch_lora_weights.safetensors", "recipe.toml"),
    ]
    (commit,) = hub.uploads.commits
    assert commit.paths == sorted(written)
    assert hub.uploads.private == {NAME}
    assert (done.url, done.commit, done.private) == (f"{hub.address}/{NAME}", hub.head(NAME), True)
    assert sorted(run.path.iterdir()) == before


def test_the_weights_are_those_of_the_chosen_checkpoint(run, tmp_path):
    """The average of the newest one; or those of a step, of the best, or as they were trained."""

    def mean(**asked):
        folder = tmp_path / f"out-{len(asked)}-{next(iter(asked), None)}"
        do(run, dry_run=True, output=folder, dtype="float32", **asked)
        return torch.cat([t.flatten() for t in load_file(folder / "pytorch_lora_weights.safetensors").values()]).mean()

    newest, older = mean(), mean(step=10)
    assert (newest > 0.7) & (older > 0.7) & (newest != older)
    assert mean(best=True) == older
    assert mean(raw_weights=True) < 0.5
    with refused("no-such-checkpoint", "step"):
        do(run, step=15, dry_run=True)


def test_the_card_tells_the_hub_and_people_what_it_is(tmp_path, hub):
    run = published_run.make(tmp_path, weights=BASE, on_hub={"model.weights": f"{BASE}@{'a' * 40}"})
    hub.cards[BASE] = {"license": "other", "license_name": "a-licence", "license_link": "LICENSE.md"}
    hub.put(BASE, tmp_path)
    done = do(run)
    text = held(hub)["README.md"].decode()
    link = f"{hub.address}/{BASE}/blob/main/LICENSE.md"
    assert front_matter(text.encode()) == {
        "base_model": BASE,
        "base_model_relation": "adapter",
        "library_name": "diffusers",
        "license": "other",
        "license_name": "a-licence",
        "license_link": link,
        "pipeline_tag": "text-to-video",
        "instance_prompt": "rwmug",
        "tags": ["text-to-video", "lora", "template:diffusion-lora", "reelworks"],
        "widget": [
            {"text": PROMPT, "output": {"url": f"previews/0{i}.{suffix}"}} for i, suffix in ((0, "png"), (1, "mp4"))
        ],
    }
    facts = [
        "LoRA of rank 2, alpha 2",
        f"a-licence ([text]({link}))",
        "| clips shown | 57 |",
        "for 20 steps",
        "`rwmug` in",
    ]
    facts += [
        f'load_lora_weights("{NAME}", weight_name="pytorch_lora_weights.safetensors")',
        f'from_pretrained("{BASE}"',
    ]
    for fact in facts:
        assert fact in text
    assert (done.license, done.notes) == ("a-licence", [])
    assert toml.parse(held(hub)["recipe.toml"].decode())["model"]["weights"] == f"{BASE}@{'a' * 40}"


def test_the_card_of_an_earlier_step_tells_what_was_trained_up_to_it(run, tmp_path):
    """One of its ten steps was skipped, and showed no clips."""
    do(run, step=10, dry_run=True, output=tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "for 10 steps" in text
    assert "| clips shown | 27 |" in text


def test_previews_are_the_newest_up_to_the_step(tmp_path):
    run = published_run.make(tmp_path)
    later = {"files": ["step-000000010/00.png"], "prompts": ["a later cup"], "by": "own", "num_inference_steps": 8}
    EventLog(run.events_file).write("samples", step=20, **later)
    for step, is_later in ((10, False), (20, True)):
        do(run, step=step, dry_run=True, output=tmp_path / f"{step}")
        assert ("a later cup" in (tmp_path / f"{step}" / "README.md").read_text(encoding="utf-8")) == is_later


def test_a_card_tells_each_recipe_and_the_data_that_trained_a_step(run, tmp_path):
    """The whole recipe is one alone; a start with the same recipe on the same footage goes on with its part."""

    def told(step):
        folder = do(run, step=step, dry_run=True, output=tmp_path / f"out-{len(list(tmp_path.iterdir()))}").folder
        return (folder / "README.md").read_text(encoding="utf-8"), {p.name: p for p in folder.glob("*.toml")}

    def planned(clips, side):
        counts = CatalogCounts(clips, 0, clips, 0)
        return plan_summaries.summary(plan_summaries.bucket(clips, 1, side, side), catalog=counts, planned=clips)

    first = recipe_file.load(run.recipe_file)
    second = first.model_copy(update={"train": first.train.model_copy(update={"learning_rate": 7e-5})})
    files.write_json(run.summary_file(0), planned(30, 32))
    published_run.go_on(run, 20, first, planned(30, 32))
    published_run.go_on(run, 30, second, planned(55, 64))
    published_run.go_on(run, 40, second, planned(77, 64), world_size=4)
    text, recipes = told(30)
    assert [*recipes] == ["recipe.toml"]
    assert "is the whole recipe" in text
    assert "30 pictures and 0 videos; an epoch trains 30." in text
    assert "| 32 × 32 | 1 | 30 |" in text
    assert "10.0 s on 1 × cpu, 10.0 s on 8 × gpu" in text
    text, recipes = told(50)
    assert "whole recipe" not in text
    rows = [line.split(" | ") for line in text.splitlines() if line.endswith("toml) |")]
    rates = [units.learning_rate(recipe.train.learning_rate) for recipe in (first, second, second)]
    assert [(row[0], row[1].partition(",")[0], *row[3:5]) for row in rows] == [
        ("| 1–30", rates[0], "30 clips", "77"),
        ("| 31–40", rates[1], "55 clips", "20"),
        ("| 41–50", rates[2], "77 clips", "20"),
    ]
    named = [recipes[name] for name in ("recipe-1.toml", "recipe-2.toml", "recipe.toml")]
    assert [recipe_file.load(file).train for file in named] == [first.train, second.train, second.train]
    assert PERSON not in "".join(file.read_text(encoding="utf-8") for file in named)
    published_run.go_on(run, 20, second, planned(12, 48))  # which takes back what followed
    text, recipes = told(30)
    assert sorted(recipes) == ["recipe-1.toml", "recipe.toml"]
    assert "Of the last part: 12 pictures and 0 videos" in text


def test_what_a_model_draws_by_itself_has_the_size_that_trained_its_step(run):
    """And not that of a later start, whose plan is the newest of the run."""
    recipe = recipe_file.load(run.recipe_file)
    for step, side in ((0, 32), (20, 64)):
        summary = plan_summaries.summary(plan_summaries.bucket(9, 1, side, side))
        files.write_json(run.summary_file(step), summary)
        files.write_json(run.summary_file(), summary)
    published_run.go_on(run, 20, recipe, summary)
    shapes = [defaults.shape(plan_report.read_summary(run, step), recipe, picture=True) for step in (10, 20, 30)]
    assert [shape.height for shape in shapes] == [32, 32, 64]
    assert plan_report.read_summary(run) == summary


def test_the_example_draws_the_base_as_it_is_drawn_and_not_as_the_model_of_the_previews(tmp_path):
    """A distilled relative draws previews in few steps without guidance, which draws nothing with the base."""
    samples = {"prompts": [PROMPT], "model": "wan-2.1-14b", "num_inference_steps": 4, "guidance_scale": 1.0}
    on_hub, own = {"model.weights": f"{BASE}@{'a' * 40}"}, tiny_families.recipe_of("wan-tiny", BASE)
    own = {key: own[key] for key in ("autoencoder", "text_encoder")}
    run = published_run.make(tmp_path, weights=BASE, on_hub=on_hub, samples=samples, **own)
    text = (do(run, dry_run=True, output=tmp_path / "out").folder / "README.md").read_text(encoding="utf-8")
    assert "'guidance_scale': 5.0, 'num_inference_steps': 50" in text
    assert "The previews are drawn with `wan-2.1-14b`." in text


def test_the_licence_that_is_named_wins(run, tmp_path):
    """Over that of the recipe; a name that the hub does not know is one of its own, which is noted."""
    for text, told in (
        ("apache-2.0", ["apache-2.0", None]),
        ("MIT", ["mit", None]),
        ("flux-1-dev-non-commercial-license", ["other", "flux-1-dev-non-commercial-license"]),
        ("My own [v1]\n---", ["other", "my-own-v1"]),
    ):
        done = do(run, license=text, dry_run=True, output=tmp_path / str(told[1] or told[0]))
        assert any(str(told[1]) in note for note in done.notes) == (told[0] == "other")
        values = front_matter((done.folder / "README.md").read_bytes())
        assert [values["license"], values.get("license_name")] == told


def texts(folder: Path):
    """All that files of a folder say, also what is packed in them."""
    for path in folder.rglob("*"):
        yield path.name.encode()
        if path.is_file():
            yield path.read_bytes()
        if path.suffix == ".png":
            with Image.open(path) as image:
                yield repr((image.info, dict(image.getexif()))).encode()


def test_nothing_tells_who_trained_it_or_where(run, tmp_path):
    """Recipe, headers and previews name a person in twenty places before, and in none afterwards."""
    folders = [run.recipes_folder, run.checkpoints_folder, run.samples_folder]
    assert sum(text.lower().count(PERSON.encode()) for folder in folders for text in texts(folder)) > 20
    folder = do(run, dry_run=True, output=tmp_path / "out", formats=("diffusers", "comfyui", "kohya")).folder
    for text in texts(folder):
        assert PERSON.encode() not in text.lower()
        assert str(tmp_path).encode() not in text
    with (
        Image.open(folder / "previews/00.png") as image,
        Image.open(run.samples_folder / "step-000000010/00.png") as old,
    ):
        assert image.tobytes() == old.tobytes()
    with safe_open(folder / "mug-kohya.safetensors", "pt") as file:
        assert file.metadata()["ss_sd_model_name"] == "wan-tiny"
        assert json.loads(file.metadata()["reelworks_base"])["weights"] is None


def test_no_file_that_is_given_away_tells_where_it_was_made(run, tmp_path):
    """Those of `checkpoints export` and of the verbs of `lora` name the base by the last part of its path, or by its hub id."""
    out, base, tuned = tmp_path / "out", tmp_path / PERSON / "wan.safetensors", tmp_path / PERSON / "tuned.safetensors"
    weights = {"blocks.0.attn1.to_q.weight": torch.zeros(24, 24)}
    save_file(weights, base)
    save_file({name: value + 1 for name, value in weights.items()}, tuned)
    exported = [export_run.export(run.path, out / f"{form}.safetensors", format=form).files[0] for form in CONVENTIONS]
    for verb in (
        *(["resize", file, "--rank", "1"] for file in exported),
        *(["merge", f"{file}=0.5", file] for file in exported),
        ["average", run.path, "--sigma-rel", "0.2"],
        ["extract", base, tuned, "--rank", "1", "--model", "wan-tiny"],
    ):
        target = out / f"{len(list(out.iterdir()))}.safetensors"
        done = CliRunner().invoke(app, ["lora", *map(str, verb), "-o", str(target)])
        assert done.exit_code == 0, done.output
        assert target.is_file()
    for text in texts(out):
        assert PERSON.encode() not in text.lower()
        assert str(tmp_path).encode() not in text
    with safe_open(exported[0], "pt") as file:
        header = file.metadata()
    assert (header["ss_sd_model_name"], json.loads(header["reelworks_base"])["weights"]) == ("wan", "wan")
    assert Base("wan-tiny", BASE, "").for_others().weights == BASE


def test_the_recipe_still_is_one_and_trains_alike(run, tmp_path):
    folder = do(run, dry_run=True, output=tmp_path / "out").folder
    mine, told = recipe_file.load(run.recipe_file), recipe_file.load(folder / "recipe.toml")
    assert told.dataset[0].path == "your-path"
    assert told.dataset[0].caption == mine.dataset[0].caption
    for part in ("bucket", "data", "lora", "objective", "precision", "train", "samples", "seed"):
        assert getattr(told, part) == getattr(mine, part), part


def test_a_run_whose_events_were_lost_is_still_published(run, tmp_path):
    run.events_file.unlink()
    folder = do(run, dry_run=True, output=tmp_path / "out").folder
    assert recipe_file.load(folder / "recipe.toml").train == recipe_file.load(run.recipe_file).train
    assert "is the whole recipe" in (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "metric",
    ["validation/loss", "samples/likeness-pixels", f"eval/{PERSON}", "0.7 * samples/likeness-pixels - 0.3 * eval/a"],
)
def test_a_recipe_that_is_told_measures_what_it_keeps_the_best_by(metric):
    values = tiny_recipe.of_family("wan-tiny", "run", {"path": "cups"})
    values["samples"] = {"prompts": ["a cup"], "metrics": ["likeness-pixels"]}
    values["checkpoints"] = {"keep_best": {"metric": metric, "mode": "max"}}
    text = recipe_file.dump(neutral.recipe(recipe_file.parse(values), {}))
    assert PERSON not in text
    previews.require_measured(recipe_file.parse(toml.parse(text)))


def test_what_a_recipe_says_of_the_machine_is_not_told(run, tmp_path):
    """Not its numbers and words either: trackers, and how copies of checkpoints are kept elsewhere."""
    mine = recipe_file.load(run.recipe_file)
    assert mine.logging.trackers
    assert mine.checkpoints.mirror is not None
    told = recipe_file.load(do(run, dry_run=True, output=tmp_path / "out").folder / "recipe.toml")
    assert told.logging == LoggingConfig()
    assert told.checkpoints.mirror is None


def keys(model, prefix=""):
    """Each key of a recipe with its field, and each table of which nothing is told."""
    for name, field in model.model_fields.items():
        inner = None if Publish.decision_on(field) else toml_none.config_in(field.annotation)
        yield from [(f"{prefix}{name}", field)] if inner is None else keys(inner, f"{prefix}{name}.")


def test_of_each_text_in_a_recipe_it_is_decided_whether_it_may_be_told():
    """A key that is none of these gets its default; this test asks for a decision about each new one."""
    texts = {key: Publish.decision_on(field) for key, field in keys(Recipe) if neutral.holds_text(field.annotation)}
    assert len(texts) > 50
    assert [key for key, publish in texts.items() if publish is None] == []


def test_places_of_several_datasets_and_sources_stay_several():
    values = {
        "version": 1, "output": "x", "model": {"name": "qwen-image-edit-plus-tiny"}, "train": {"max_steps": 1},
        "bucket": [{"resolution": "32x32", "num_frames": 1}], "autoencoder": {"stride": 4},
        "dataset": [{"path": f"/a/{i}", "source": ["/b", f"/c/{i}"]} for i in (1, 2)],
    }  # fmt: skip
    told = neutral.recipe(Recipe.model_validate(values), {})
    assert [(d.path, d.source) for d in told.dataset] == [
        (f"your-path-{i}", [f"your-source-{i}-1", f"your-source-{i}-2"]) for i in (1, 2)
    ]


@pytest.mark.parametrize(
    ("value", "on_hub", "told"),
    [
        ("owner/name", {"model.weights": "owner/name@abc"}, "owner/name@abc"),
        ("owner/name@v1", {"model.weights": "owner/name@abc"}, "owner/name@abc"),
        ("models/wan", {}, None),  # a folder that looks like a hub id
        ("models/wan", {"model.weights": "owner/name@abc"}, None),
        ("/data/wan", {"model.weights": "owner/name@abc"}, None),
        (None, {}, None),
    ],
)
def test_only_what_was_downloaded_is_named(value, on_hub, told):
    assert neutral.hub_id("model.weights", value, on_hub) == told


@pytest.mark.parametrize(
    ("captions", "trigger"),
    [
        (["rwmug, {text}"], "rwmug"),
        (["a photo of rwmug: {text}", "a photo of rwmug: {text}"], "a photo of rwmug"),
        (["{text}"], None),
        (["rwmug, {text}", "{text}"], None),
        (["{fps:.0f} frames, {text}"], None),
    ],
)
def test_the_trigger_is_what_stands_before_each_caption(captions, trigger):
    recipe = Recipe.model_validate(
        {
            "version": 1, "output": "x", "train": {"max_steps": 1},
            "bucket": [{"resolution": "32x32", "num_frames": 1}],
            "dataset": [{"path": f"/a/{i}", "caption": caption} for i, caption in enumerate(captions)],
        }
    )  # fmt: skip
    assert card.trigger_of(recipe) == trigger


@pytest.mark.parametrize(("triggers", "told"), [(["rwmug"], "rwmug"), (["rwmug", "rwcup"], None)])
def test_datasets_for_prior_prediction_have_no_part_in_the_trigger(triggers, told):
    """Their captions lack it on purpose."""
    recipe = Recipe.model_validate(
        {
            "version": 1, "output": "x", "train": {"max_steps": 1}, "lora": {},
            "bucket": [{"resolution": "32x32", "num_frames": 1}],
            "dataset": [
                *({"path": f"/a/{trigger}", "trigger": trigger} for trigger in triggers),
                {"path": "/a/mugs", "prior_prediction": True},
            ],
        }
    )  # fmt: skip
    assert card.trigger_of(recipe) == told


def test_the_same_again_changes_nothing_and_a_later_step_is_another_commit(run, hub):
    first = do(run, step=10)
    sent = len(hub.uploads.received)
    assert do(run, step=10).commit == first.commit
    later = do(run)
    assert later.commit != first.commit
    assert len(hub.uploads.commits) == 2
    assert hub.uploads.commits[1].paths == ["README.md", "pytorch_lora_weights.safetensors"]
    assert len(hub.uploads.received) == sent + 1


@pytest.fixture
def theirs(hub, tmp_path):
    """A repository with a card and a file that somebody wrote by hand."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "README.md").write_text("# My mug\n", encoding="utf-8")
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    hub.put(NAME, folder)
    return held(hub)


def test_files_of_others_are_replaced_only_if_asked_for(run, hub, theirs):
    with refused("repository-taken", "to", says=r"README\.md"):
        do(run)
    assert held(hub) == theirs
    assert do(run, replace=True).private is False, "the repository stays as public as it was"
    assert held(hub)["notes.txt"] == b"mine"
    assert held(hub)["README.md"] != theirs["README.md"]


def test_weights_of_others_without_a_card_are_replaced_only_if_asked_for(run, hub, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "pytorch_lora_weights.safetensors").write_bytes(b"theirs")
    hub.put(NAME, tmp_path / "theirs")
    with refused("repository-taken", "to", says=r"pytorch_lora_weights\.safetensors"):
        do(run)


def test_a_card_that_was_edited_on_the_hub_is_not_lost(run, hub):
    do(run)
    folder = hub.repositories[NAME]["main"]
    (folder / "README.md").write_text(
        (folder / "README.md").read_text(encoding="utf-8") + "\nDrink from it.\n", encoding="utf-8"
    )
    with refused("repository-taken", "to", says="edited"):
        do(run, step=10)
    assert held(hub)["README.md"].endswith(b"Drink from it.\n")


def test_a_card_that_is_edited_during_an_upload_is_not_lost(run, hub, monkeypatch, tmp_path):
    do(run, step=10)
    put, folder = hub.uploads.put, tmp_path / "edited"

    def put_while_somebody_edits(oid, body):
        put(oid, body)
        shutil.copytree(hub.repositories[NAME]["main"], folder)
        (folder / "README.md").write_text("# My mug\n", encoding="utf-8")
        hub.put(NAME, folder)

    monkeypatch.setattr(hub.uploads, "put", put_while_somebody_edits)
    with refused("repository-changed", "to", says="same command again"):
        do(run)
    assert held(hub)["README.md"] == b"# My mug\n"


def test_files_beside_those_of_others_are_added(run, hub, theirs):
    (hub.repositories[NAME]["main"] / "README.md").unlink()
    do(run)
    assert held(hub)["notes.txt"] == b"mine"


@pytest.mark.parametrize("output", [None, "kept"])
def test_an_upload_that_breaks_off_goes_on(run, hub, tmp_path, output):
    """What has arrived is not sent again; until the commit the repository is as it was."""
    output = output and tmp_path / output
    hub.uploads.faults["commit/main"] = Refused(0, "")
    with refused("hub-unreachable", "to", says="same command again"):
        do(run, output=output)
    assert held(hub) == {}
    sent = len(hub.uploads.received)
    assert sent == 3
    assert do(run, output=output).folder == output
    assert len(hub.uploads.received) == sent
    assert len(held(hub)) == 5


def test_a_file_that_arrives_with_other_bytes_is_not_committed(run, hub, monkeypatch):
    """The hub's own check, without which no test here would say that files arrive."""
    put = hub.uploads.put
    monkeypatch.setattr(hub.uploads, "put", lambda oid, body: put(oid, body[:-1] + b"?"))
    with refused("hub-failed", "to", says="another hash"):
        do(run)
    assert held(hub) == {}


FAULTS = {
    "no rights": ("POST /api/repos/create", 403, "Forbidden", "hub-write-refused"),
    "no room": ("objects/batch", 403, "Private repository storage limit reached", "hub-full"),
    "payment": ("POST /api/repos/create", 402, "Pay first", "hub-full"),
    "meanwhile": ("commit/main", 412, "A commit has happened since", "repository-changed"),
    "created meanwhile": ("POST /api/repos/create", 409, "You already created this model repo", "repository-changed"),
    "token expired": ("GET /api/whoami-v2", 401, "Invalid user token", "hub-token-refused"),
    "hub in trouble": ("commit/main", 500, "Internal error at https://x/?signature=secret", "hub-failed"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_the_hub_refuses_is_told_in_its_words(run, hub, fault):
    end, status, message, code = FAULTS[fault]
    hub.uploads.faults[end] = Refused(status, message)
    with refused(code, "to", says=message.partition(" at")[0]) as told:
        do(run)
    assert told.value.value == NAME
    assert str(told.value).count("\n") == 1, "a line, and its remedy"
    assert "secret" not in str(told.value)
    assert "hf_anna" not in str(told.value)
    assert hub.uploads.commits == []
    assert do(run).commit, "the same command works once the cause is gone"


@pytest.mark.parametrize(
    ("token", "name", "code", "says"),
    [
        (None, NAME, "hub-token-missing", "hf auth login"),
        ("hf_unknown", NAME, "hub-token-refused", "Invalid"),
        ("hf_read", NAME, "hub-write-refused", "may only read"),
        ("hf_ben", NAME, "hub-write-refused", "ben/mug"),
        ("hf_anna", "cups/mug", None, ""),
    ],
)
def test_who_may_write_and_where_is_asked_before_anything_is_exported(run, hub, monkeypatch, token, name, code, says):
    monkeypatch.delenv("HF_TOKEN") if token is None else monkeypatch.setenv("HF_TOKEN", token)
    if code is None:
        assert do(run, to=name).commit
        return
    monkeypatch.setattr(publish.export_run, "export", None)  # which would fail
    with refused(code, "to", says=says) as told:
        do(run, to=name)
    assert told.value.value == name
    assert hub.repositories == {}


@pytest.mark.parametrize("exists", [True, False])
def test_only_a_new_repository_is_asked_for_its_owner(exists):
    """Who may write to one of others, the hub knows."""
    with nullcontext() if exists else refused("hub-write-refused", says="anna/cup"):
        hub_repository._require_writing({"name": "anna"}, "ben/cup", exists=exists)


@pytest.mark.parametrize("name", ["mug", "https://huggingface.co/anna/mug", "anna/mug@main", "anna/mug/x", "", "a b/c"])
def test_a_name_is_owner_and_name(name):
    with refused("repository-name-invalid", "to", says="OWNER/NAME"):
        PublishRequest(source="run", to=name)


@pytest.mark.parametrize("name", ["../..", "anna/.mug", "anna/mug.git", "anna/a--b", "anna/" + "m" * 100])
def test_names_that_no_hub_takes_are_refused_without_asking_it(run, name):
    with refused("repository-name-invalid", "to"):
        do(run, to=name, dry_run=True)


def test_without_a_connection_it_is_told(run, hub, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with refused("hub-unreachable", "to", says="127.0.0.1:9"):
        do(run)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert do(run, dry_run=True).folder == run.path / "publish"


def test_a_licence_that_the_hub_does_not_know_is_told_in_its_words(run, hub):
    with refused("hub-failed", "to", says="is required.*correct what it names"):
        do(run, license="other")
    assert hub.uploads.commits == []


def test_others_do_not_see_what_is_to_be_private(run, hub, theirs):
    with refused("repository-visibility", "private", says="public already"):
        do(run, private=True, replace=True)
    assert held(hub) == theirs
    assert do(run, to="anna/other", private=False).private is False
    assert hub.uploads.private == set()


def test_the_option_that_a_repository_contradicts_is_the_one_that_was_given(run, hub):
    do(run)
    with refused("repository-visibility", "private", says="private already"):
        do(run, private=False)
    done = CliRunner().invoke(app, ["publish", str(run.path), "--to", NAME, "--public"])
    assert done.exception.field == "--public"


def test_a_folder_with_anything_in_it_is_not_written_to(run, tmp_path):
    folder = do(run, dry_run=True).folder
    (folder / "notes.json").write_text("mine", encoding="utf-8")
    with refused("folder-not-empty", "output", says="publish"):
        do(run, dry_run=True)
    (folder / "notes.json").unlink()
    (folder / "README.md").write_text("# Mine", encoding="utf-8")
    with refused("folder-not-empty", "output", says="publish"):
        do(run, dry_run=True)
    (tmp_path / "file").touch()
    with refused("folder-not-empty", "output"):
        do(run, dry_run=True, output=tmp_path / "file")


@pytest.mark.parametrize("name", ["recipe.toml", "mine/recipe.toml", "toml", "previews/00.mp4"])
def test_a_file_of_ones_own_is_kept_whatever_its_name(run, name):
    """Such as one that was changed by hand after a dry run, or whose name occurs in the card."""
    file = do(run, dry_run=True).folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine", encoding="utf-8")
    with refused("folder-not-empty", "output", says="publish"):
        do(run, dry_run=True)
    assert file.read_text(encoding="utf-8") == "mine"


def test_a_dry_run_is_given_again_as_its_notes_say(run, monkeypatch):
    """One that fails leaves what the one before has written."""

    def copy(_source, _target):
        raise OSError(errno.ENOSPC, "no room")

    folder = do(run, dry_run=True, formats=("diffusers", "comfyui")).folder
    before = {path.name for path in folder.rglob("*")}
    with monkeypatch.context() as patch, refused("file-unwritable", "output", says="no room"):
        patch.setattr(neutral, "copy_preview", copy)
        do(run, dry_run=True, formats=("kohya",))
    assert {path.name for path in folder.rglob("*")} == before
    again = do(run, dry_run=True, license="apache-2.0", formats=("diffusers",))
    assert again.license == "apache-2.0"
    assert {path.name for path in folder.iterdir()} == {file.path.partition("/")[0] for file in again.files}
    assert not [*run.path.glob(".publish*")]


def test_previews_that_are_damaged_or_elsewhere_are_left_out(run, tmp_path, caplog):
    (run.samples_folder / "step-000000010/00.png").write_bytes(b"\x89PNG\r\n\x1a\nnot a picture")
    secret = tmp_path / "secret.mp4"
    (run.samples_folder / "step-000000010/01.mp4").rename(secret)
    places.link(run.samples_folder / "step-000000010/01.mp4", secret)
    done = do(run, dry_run=True, output=tmp_path / "out")
    assert not [file for file in done.files if file.path.startswith("previews/")]
    assert "there are no previews" in " ".join(done.notes)


@pytest.mark.parametrize("number", sorted(files.FULL))
def test_a_full_disk_publishes_nothing_rather_than_no_previews(run, hub, monkeypatch, number):
    def copy(_source, target):
        target.write_bytes(b"a part")
        raise OSError(number, os.strerror(number), str(target))

    monkeypatch.setattr(neutral, "copy_preview", copy)
    with refused("file-unwritable", "output", says=os.strerror(number)):
        do(run)
    assert not hub.uploads.commits
    assert not [*run.path.glob(".publish-*")]


def test_the_command_prints_what_it_did(run, hub):
    done = CliRunner().invoke(app, ["publish", str(run.path), "--to", NAME, "--public"])
    assert done.exit_code == 0, done.output
    *_, last = done.stdout.splitlines()
    assert last == f"{hub.address}/{NAME}: step 20, public, commit {hub.head(NAME)}"
    assert "note: the licence is not known: name it with --license" in done.stdout


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("apache-2.0", "apache-2.0"),
        ("openrail++", "openrail++"),
        ("CC-BY-NC-4.0", "cc-by-nc-4.0"),
        ("llama3.1", "llama3.1"),
    ]
    + [(text, "apache-2.0") for text in ("Apache-2.0", " APACHE 2.0")],
)
def test_names_of_licences_of_the_hub_stay_in_any_case(text, named):
    assert Licence.named(text) == Licence(named)
