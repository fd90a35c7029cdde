"""New recipes on the page: uploads that cannot leave their folder, a LoRA's recipe, and a recipe as form and text."""

from __future__ import annotations

import json
import re
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import places
import pytest
from anyio.from_thread import start_blocking_portal
from refused import refused
from starlette.testclient import TestClient
from tests.makers import durable, page_client, prepare_files, tiny_recipe

from reelworks.annexes.page import app, new_api, recipe_files, recipe_form, uploads, workspace
from reelworks.annexes.page.guard import TOKEN_HEADER
from reelworks.annexes.page.workspace import Workspace, key_of
from reelworks.core import system
from reelworks.core.errors import UserError
from reelworks.models import registry
from reelworks.training.recipe import recipe_file
from reelworks.training.recipe.recipe import Recipe

RECIPE = """# Cats.
version = 1

[[dataset]]
path = "mine"  # all of them

[[bucket]]
resolution = "48px"
num_frames = 1

[model]
name = "stdit3-tiny"

[train]
max_steps = 10  # few
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "project"
    (path / "mine").mkdir(parents=True)
    for number in range(3):
        prepare_files.picture(path / f"mine/picture-{number}.png", size=(64, 64))
    (path / "cats.toml").write_text(RECIPE, encoding="utf-8")
    monkeypatch.chdir(path)
    return path


@pytest.fixture
def page(folder: Path) -> Iterator[TestClient]:
    with page_client.page(folder) as client:
        yield client


def everything(folder: Path) -> dict[str, bytes | None]:
    paths = (path for path in folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


def test_weights_of_the_hub_are_downloaded_unless_they_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a revision, with all files that an index names, in the folder that training reads: a check has fetched configs."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    there = tmp_path / "models--a--here"
    (there / "refs").mkdir(parents=True)
    (there / "refs" / "main").write_text("c" * 40, encoding="utf-8")
    place = there / "snapshots" / ("c" * 40)
    (place / "vae").mkdir(parents=True)
    names = ["a/here", f"a/here@{'c' * 40}", "a/here@v2", "a/there", "/a/b", "./a", "a", str(tmp_path / "x")]

    def missing(*folders: str) -> list[str]:
        return [name for name in names if new_api._must_be_downloaded(name, folders)]

    (place / "vae" / "config.json").touch()
    assert missing("vae") == names[:4]
    (place / "model.safetensors").touch()
    assert missing() == names[2:4]
    assert missing("vae") == names[:4]
    index = {"weight_map": {"a.weight": "one.safetensors", "b.weight": "two.safetensors"}}
    (place / "vae" / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (place / "vae" / "one.safetensors").touch()
    assert missing("vae") == names[:4]
    (place / "vae" / "two.safetensors").touch()
    assert missing("vae") == names[2:4]
    one_file = [f"a/here/{name}.safetensors" for name in ("model", "other")]
    assert [new_api._must_be_downloaded(name, ()) for name in one_file] == [False, True]


def test_hidden_files_are_no_footage(tmp_path: Path) -> None:
    for name in ("a.png", "._a.png", "a.txt", "._a.txt"):
        (tmp_path / name).touch()
    assert new_api._count(tmp_path) == {"media": 1, "pictures": 1, "videos": 0, "captions": 1}


def test_all_weights_that_a_recipe_names_are_told_to_be_downloaded_once() -> None:
    model = {"name": "wan-2.1-i2v-14b", "weights": "a/model", "image_encoder": "a/sees"}
    lora = {"rank": 2, "weights": "a/lora", "training_adapter": "a/repository/adapter.safetensors"}
    values = tiny_recipe.least(
        model=model,
        lora=lora,
        autoencoder={"name": "wan-2.1", "weights": "a/model"},
        text_encoder={"name": "wan", "weights": "a/text"},
        samples={"prompts": ["a mug"], "weights": "a/shown"},
    )
    named = ["a/model", "a/lora", "a/text", "a/sees", "a/repository/adapter.safetensors", "a/shown"]
    assert new_api._downloads(recipe_file.parse(values)) == named


def test_an_upload_is_the_file_that_was_sent(page: TestClient, folder: Path) -> None:
    data = (folder / "mine/picture-0.png").read_bytes()
    told = page.put("/api/new/footage/my%20cats/inside/a%20picture.PNG", content=data)
    assert told.status_code == 200
    assert (folder / "footage/my cats/inside/a picture.PNG").read_bytes() == data
    assert page.put("/api/new/footage/my%20cats/a.txt", content=b"a cat").json()["folder"] in {
        one["key"] for one in page.get("/api/new/folders").json()
    } | {key_of(folder / "footage/my cats")}
    before = everything(folder)
    again = page.put("/api/new/footage/my%20cats/a.txt", content=b"another")
    assert again.status_code == 400
    assert again.json()["code"] == "file-exists"
    assert everything(folder) == before


def test_of_two_uploads_of_one_name_at_a_time_the_second_is_refused(page: TestClient, folder: Path) -> None:
    """Both may begin before either has ended."""
    real = uploads._write

    async def late(request: Any, temporary: Path, announced: int) -> int:
        written = await real(request, temporary, announced)
        (folder / "footage/cats/b.png").write_bytes(b"first")
        return written

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uploads, "_write", late)
        told = page.put("/api/new/footage/cats/b.png", content=b"second")
    assert told.json()["code"] == "file-exists"
    assert (folder / "footage/cats/b.png").read_bytes() == b"first"


def test_an_upload_is_on_disk_before_it_has_its_name(page: TestClient, folder: Path) -> None:
    """A power cut leaves the whole file, or none under this name."""
    renamed = []

    def check(synced: durable.Synced, path: Path) -> None:
        renamed.append(path.read_bytes())
        assert synced.has_content(path)

    with durable.before_renames(check):
        assert page.put("/api/new/footage/cats/a.png", content=b"x" * 100_000).status_code == 200
    assert renamed == [b"x" * 100_000]
    assert (folder / "footage/cats/a.png").exists()


@pytest.mark.parametrize(
    ("name", "file", "code"),
    [
        ("..", "a.png", "name-invalid"),
        ("x", "../a.png", "name-invalid"),
        ("x", "../../mine/a.png", "name-invalid"),
        ("x", ".hidden.png", "name-invalid"),
        ("x", "a//b.png", "name-invalid"),
        ("é" * 149, "a.png", "name-invalid"),
        ("x", "/etc/a.png", "name-invalid"),
        ("x", "a\\b.png", "name-invalid"),
        ("x", "a\0.png", "name-invalid"),
        ("x", "a/b/c/d/e/f.png", "name-invalid"),
        ("", "a.png", "name-invalid"),
        ("x" * 200, "a.png", "name-invalid"),
        ("x", "a.sh", "upload-not-taken"),
        ("x", "a.toml", "upload-not-taken"),
        ("x", "a.png.exe", "upload-not-taken"),
        ("x", "png", "upload-not-taken"),
    ],
)
def test_names_that_are_no_footage_below_the_folder_are_refused(folder: Path, name: str, file: str, code: str) -> None:
    with pytest.raises(UserError) as refused:
        uploads.target(Workspace([folder]), name, file)
    assert refused.value.code == code


@pytest.mark.parametrize("file", ["%2e%2e/x.png", "..%2fx.png", "a/%2e%2e/%2e%2e/%2e%2e/x.png", "x.sh", "%00.png"])
def test_refused_names_write_nothing(page: TestClient, folder: Path, file: str) -> None:
    before = everything(folder.parent)
    assert page.put(f"/api/new/footage/x/{file}", content=b"data").status_code in (400, 404, 405)
    assert everything(folder.parent) == before


def test_names_that_windows_gives_to_devices_are_refused_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace([folder])
    for is_windows in (False, True):
        monkeypatch.setattr(system, "WINDOWS", is_windows)
        assert uploads.is_name("con.png") != is_windows
        assert uploads.is_name("console.png")
    with refused("name-invalid", "name"):
        recipe_files.new_path(workspace, folder, "aux", overwrite=False)


def test_an_upload_follows_no_link(page: TestClient, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (folder / "footage").mkdir()
    places.link(folder / "footage/out", outside)
    places.link(folder / "footage/in", folder / "mine")
    (folder / "footage/own").mkdir()
    places.link(folder / "footage/own/a.png", outside / "a.png")
    for path in ("out/a.png", "in/a.png", "own/a.png"):
        told = page.put(f"/api/new/footage/{path}", content=b"data")
        assert told.json()["code"] == "outside-of-folders"
    assert not list(outside.iterdir())
    assert not (folder / "mine/a.png").exists()


def test_an_upload_without_the_token_is_refused(folder: Path) -> None:
    with TestClient(app.build([folder], "t"), base_url="http://localhost") as client:
        assert client.put("/api/new/footage/x/a.png", content=b"data").status_code == 401
    assert not (folder / "footage").exists()


@pytest.mark.parametrize(
    "ends", [{"type": "http.disconnect"}, {"type": "http.request", "body": b"", "more_body": False}]
)
def test_a_cut_off_upload_leaves_nothing(folder: Path, ends: dict[str, Any]) -> None:
    before = everything(folder)
    messages = [{"type": "http.request", "body": b"x" * 1000, "more_body": True}, ends]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = {"host": "localhost", TOKEN_HEADER.lower(): "t", "content-length": "5000"}
    scope = {
        "type": "http",
        "method": "PUT",
        "path": "/api/new/footage/cats/a.png",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    with (
        start_blocking_portal() as portal
    ):  # a loop in a thread of its own: a browser of other tests has one in this thread
        portal.call(app.build([folder], "t"), scope, receive, send)
    assert sent[0]["status"] == 400
    assert b"upload-cut-off" in sent[1]["body"]
    assert everything(folder) == before


def test_a_file_that_would_fill_the_disk_is_refused(page: TestClient, folder: Path) -> None:
    before = everything(folder)
    told = page.put("/api/new/footage/x/a.mp4", content=b"data", headers={"content-length": str(10**18)})
    assert told.json()["code"] == "upload-too-large"
    assert everything(folder) == before


def test_models_and_folders_are_those_that_new_lora_takes(page: TestClient) -> None:
    models = page.get("/api/new/models").json()
    assert [model["name"] for model in models] == list(registry.PRESETS)
    assert {model["family"] for model in models} == {family.name for family in registry.families()}
    lines = {model["name"]: model["lines"] for model in models}
    assert (lines["wan-2.1-14b"], lines["flux-dev"]) == (480, 0)  # of videos
    (mine,) = page.get("/api/new/folders").json()
    assert {name: mine[name] for name in ("path", "pictures", "videos", "captions")} == {
        "path": "mine",
        "pictures": 3,
        "videos": 0,
        "captions": 3,
    }


def test_a_model_tells_on_what_gpus_it_fits(page: TestClient) -> None:
    sizes = page.get("/api/new/models/wan-2.1-14b/sizes").json()
    assert [one["vram_gb"] for one in sizes] == sorted({one["vram_gb"] for one in sizes})
    assert all(0 < one["bytes"] <= one["vram_gb"] * 1e9 and one["seconds"] > 0 for one in sizes)
    assert page.get("/api/new/models/qwen-image-edit/sizes").json() == []
    assert page.get("/api/new/models/nothing/sizes").json()["code"] == "unknown-model"


def ended(page: TestClient, job: dict[str, Any]) -> dict[str, Any]:
    """Return a job when it is done."""
    until = time.monotonic() + 300
    while (now := page.get(f"/api/jobs/{job['id']}").json())["state"] in ("waiting", "running"):
        assert time.monotonic() < until
        time.sleep(0.2)
    assert now["state"] == "done", now["output"]
    return dict(now)


OPEN_SORA = (
    'bucket_config = {"256": {1: (1.0, 4)}}\nmodel = dict(type="STDiT3-XL/2", from_pretrained="w")\nmystery = 3\n'
)


@pytest.mark.slow
def test_a_config_of_another_trainer_becomes_a_recipe_on_the_chosen_footage(page: TestClient, folder: Path) -> None:
    (mine,) = page.get("/api/new/folders").json()
    wish = {"files": [{"name": "stage1.py", "text": OPEN_SORA}], "folder": mine["key"], "name": "stage1"}
    now = ended(page, page.post("/api/import", json=wish).json())
    assert (now["result"]["trainer"], now["result"]["recipe"]) == ("opensora", "stage1.toml")
    fates = {key["key"]: key["fate"] for key in now["result"]["keys"]}
    assert (fates["model.type"], fates["mystery"]) == ("taken", "not possible here")
    assert recipe_file.load(folder / "stage1.toml").dataset[0].path == "mine"
    assert page.post("/api/import", json=wish).json()["code"] == "file-exists"
    assert page.post("/api/import", json=wish | {"overwrite": True}).status_code == 200


@pytest.mark.parametrize("name", ["../x.py", "/x.py", "a/b.py", ".x.py", "x\ny.py", ""])
def test_a_config_is_written_into_its_folder_alone(page: TestClient, folder: Path, name: str) -> None:
    before = everything(folder)
    told = page.post("/api/import", json={"files": [{"name": name, "text": OPEN_SORA}], "name": "x"})
    assert told.status_code >= 400
    assert everything(folder) == before
    assert page.get("/api/jobs").json() == []


def test_two_configs_of_one_name_are_refused(page: TestClient, folder: Path) -> None:
    """The second would take the place of the first."""
    before = everything(folder)
    configs = [{"name": "train.toml", "text": text} for text in ("a = 1", "b = 2")]
    assert page.post("/api/import", json={"files": configs, "name": "x"}).json()["code"] == "name-invalid"
    assert everything(folder) == before


@pytest.mark.slow
def test_a_lora_for_a_folder_is_made_by_new_lora(page: TestClient, folder: Path) -> None:
    (mine,) = page.get("/api/new/folders").json()
    wish = {"folder": mine["key"], "model": "stdit3-tiny", "trigger": "--ohwx", "name": "my-cats"}
    now = ended(page, page.post("/api/new/lora", json=wish).json())
    assert now["result"]["pictures"] == 3
    made = page.get(f"/api/new/recipe/{now['subject']}").json()
    assert made["problem"] is None
    (dataset,) = recipe_file.load(folder / "my-cats.toml").dataset
    assert (dataset.path, dataset.trigger) == ("mine", "--ohwx")
    again = page.post("/api/new/lora", json=wish)
    assert again.json()["code"] == "file-exists"


def test_a_value_out_of_range_is_told_with_its_field(page: TestClient) -> None:
    told = page.post("/api/new/lora", json={"folder": "x", "model": "stdit3-tiny", "name": "x", "vram_gb": 0.5})
    assert told.status_code == 422
    assert told.json()["field"] == "vram_gb"
    assert "greater than or equal to 1" in told.json()["remedy"]


@pytest.mark.parametrize("name", ["../x", "a/b", "", "-x"])
def test_a_recipe_is_written_into_the_folder_alone(page: TestClient, name: str) -> None:
    (mine,) = page.get("/api/new/folders").json()
    told = page.post("/api/new/lora", json={"folder": mine["key"], "model": "stdit3-tiny", "name": name})
    assert told.json()["code"] == "name-invalid"
    assert page.get("/api/jobs").json() == []


def test_every_key_of_a_recipe_is_in_the_form() -> None:
    sections = {section["key"]: section for section in recipe_form.sections()}
    shown = {name for name, section in sections.items() for _ in section["fields"]}
    assert shown >= {name for name, field in Recipe.model_fields.items() if "Config" in str(field.annotation)}
    train = {field["key"]: field for field in sections["train"]["fields"]}
    assert train.keys() == type(recipe_file.parse(tomllib.loads(RECIPE) | {"output": "x"}).train).model_fields.keys()
    assert train["optimizer"]["kind"] == "choice"
    assert "adamw" in train["optimizer"]["choices"]
    assert (train["warmup_steps"]["kind"], train["warmup_steps"]["default"]) == ("whole", 0)
    assert sections["dataset"]["repeated"]
    assert not re.search("`", str(sections))


def draft(page: TestClient, text: str, *changes: dict[str, Any]) -> dict[str, Any]:
    told = page.post(f"/api/new/recipe/{cats(page)}/draft", json={"text": text, "changes": list(changes)})
    assert told.status_code == 200
    return dict(told.json())


def cats(page: TestClient) -> str:
    return next(row["key"] for row in page.get("/api/recipes").json() if row["name"] == "cats")


def test_form_and_text_are_the_same_recipe(page: TestClient) -> None:
    found = draft(
        page,
        RECIPE,
        {"path": ["train", "max_steps"], "value": 20},
        {"path": ["bucket", 0, "num_frames"], "toml": "[1, 5]"},
        {"path": ["bucket", 1], "toml": '{ resolution = "24px", num_frames = 1 }'},
        {"path": ["checkpoints", "keep_best", "n"], "value": 2},
    )
    assert found["problem"] is None
    assert "max_steps = 20  # few" in found["text"]
    assert '"mine"  # all of them' in found["text"]
    values = tomllib.loads(found["text"])
    assert values == found["values"]
    assert (values["bucket"][0]["num_frames"], values["bucket"][1]["resolution"]) == ([1, 5], "24px")
    back = draft(
        page, found["text"], {"path": ["bucket", 1], "remove": True}, {"path": ["train", "max_steps"], "value": 10}
    )
    assert len(back["values"]["bucket"]) == 1
    assert back["values"]["train"] == {"max_steps": 10}


def test_changes_that_were_made_at_once_are_all_made(page: TestClient) -> None:
    """All name the text as it was shown: removing an entry moves no other; one that is wrong leaves the rest."""
    entry = '\n[[bucket]]\nresolution = "{}px"\nnum_frames = 1\n'
    text = RECIPE + "".join(map(entry.format, (24, 96)))
    first, second = ({"path": ["bucket", i], "remove": True} for i in range(2))
    wrong, right = ({"path": ["bucket", 2, "num_frames"], "toml": toml} for toml in ("[1,", "5"))
    steps = {"path": ["train", "max_steps"], "value": 20}
    for wish in ([first, second, right, steps], [steps, second, right, first]):
        found = draft(page, text, *wish)
        assert found["problem"] is None
        assert [(b["resolution"], b["num_frames"]) for b in found["values"]["bucket"]] == [("96px", 5)]
        assert found["values"]["train"]["max_steps"] == 20
    found = draft(page, text, wrong, steps)
    assert found["problem"]["field"] == "bucket.2.num_frames"
    assert (found["values"]["train"]["max_steps"], found["values"]["bucket"][2]["num_frames"]) == (20, 1)


def test_short_tables_become_whole_ones(page: TestClient) -> None:
    head, _, tail = RECIPE.partition("[[bucket]]")
    text = head.replace("version = 1", 'version = 1\nbuckets = "auto"') + "[model]" + tail.partition("[model]")[2]
    assert draft(page, text)["problem"] is None
    found = draft(
        page, text, {"path": ["buckets", "entries"], "value": "auto"}, {"path": ["buckets", "upscale"], "value": True}
    )
    assert found["problem"] is None
    assert found["values"]["buckets"] == {"entries": "auto", "upscale": True}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"path": ["train", "max_steps"], "value": 0}, "train.max_steps"),
        ({"path": ["train", "max_stepz"], "value": 1}, "train.max_stepz"),
        ({"path": ["bucket", 0, "num_frames"], "toml": "[1,"}, "bucket.0.num_frames"),
        ({"path": ["bucket", 7, "num_frames"], "value": 1}, "bucket.7.num_frames"),
        ({"path": ["model", "name"], "value": "nonesuch"}, "model.name"),
    ],
)
def test_errors_are_told_at_their_field(page: TestClient, folder: Path, change: dict[str, Any], field: str) -> None:
    found = draft(page, RECIPE, change)
    assert found["problem"]["field"] == field
    assert found["problem"]["remedy"]
    assert (folder / "cats.toml").read_text(encoding="utf-8") == RECIPE


def test_saving_writes_the_text_and_refuses_what_is_no_recipe(page: TestClient, folder: Path) -> None:
    about = page.get(f"/api/new/recipe/{cats(page)}").json()
    assert about["run"] == key_of(folder / "runs/cats")
    text = RECIPE.replace("max_steps = 10", "max_steps = 11")
    save = f"/api/new/recipe/{cats(page)}/save"
    assert page.post(save, json={"text": "version = 1", "digest": about["digest"]}).status_code == 400
    assert page.post(save, json={"text": text, "digest": about["digest"], "name": "more"}).status_code == 200
    assert "max_steps = 11  # few" in (folder / "more.toml").read_text(encoding="utf-8")
    assert (folder / "cats.toml").read_text(encoding="utf-8") == RECIPE
    assert page.post(save, json={"text": text, "digest": about["digest"]}).status_code == 200
    assert (folder / "cats.toml").read_text(encoding="utf-8") == text
    assert page.post(save, json={"text": RECIPE, "digest": about["digest"]}).json()["code"] == "file-changed"


@pytest.mark.parametrize(("text", "code"), [("", "key-missing"), (RECIPE.replace("[model]", "[model"), "not-toml")])
def test_a_recipe_that_an_editor_has_broken_is_still_there(
    page: TestClient, folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: str
) -> None:
    monkeypatch.setattr(workspace, "_FRESH_SECONDS", 0.0)
    key = cats(page)
    (folder / "cats.toml").write_text(text, encoding="utf-8")
    (row,) = page.get("/api/recipes").json()
    assert row["key"] == key
    assert page.get(f"/api/plan/{key}").json()["code"] == code
    (folder / "cats.toml").unlink()
    assert page.get("/api/recipes").json() == []
    assert page.get(f"/api/new/recipe/{key}").status_code == 404
