"""`inspect`, `preview` and `coverage` as a person types them, without torch."""

from __future__ import annotations

import json
import subprocess
import sys

import children
import pytest
import tomli_w
from PIL import Image

from reelworks.training.recipe import recipe_file


@pytest.fixture
def typed(monkeypatch, capsys):
    """Run the command line in this process; returns what it prints and its exit code."""
    from reelworks.commands import main

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["reelworks", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main.main()
        said = capsys.readouterr()
        return said.out + said.err, left.value.code or 0

    return run


def test_the_three_verbs_after_a_training(tiny, tmp_path, typed):
    made = tiny(train={"max_steps": 4})
    assert children.train(made) == [0]
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe_file.dump(recipe_file.parse(made)), encoding="utf-8")

    told, code = typed("coverage", tmp_path / "run", "--clip", "damaged.mp4")
    assert code == 0
    assert "trained + 0 failed + 0 skipped +" in told
    assert "adds up" in told
    assert "epoch 0: unreadable" in told
    told, _ = typed("coverage", tmp_path / "run", "--never-trained", "--json")
    value = json.loads(told)
    assert {"footage0/damaged.mp4", "footage0/no-caption.mp4"} <= {clip["path"] for clip in value["clips"]}
    told, code = typed("coverage", tmp_path / "run", "--clip", "nothing.mp4")
    assert code == 2
    assert "remedy" in told

    told, code = typed("inspect", tmp_path / "run" / "catalog", "--html", tmp_path / "page.html")
    assert code == 0
    assert "1 clip cannot be read" in told
    assert "[[bucket]]" in told
    assert (tmp_path / "page.html").stat().st_size > 100_000
    assert json.loads(typed("inspect", tmp_path / "run" / "catalog", "--json")[0])["summary"]["clips"] == 19

    told, code = typed("contact-sheet", recipe, "-o", tmp_path / "sheets", "--clips", 2)
    assert code == 0
    assert "cropped most" in told
    assert (tmp_path / "sheets" / "index.html").is_file()
    value = json.loads(typed("contact-sheet", recipe, "--json")[0])
    assert value["index"] == str(tmp_path / "run" / "contact-sheet" / "index.html")


def test_a_model_or_folder_that_is_not_there_is_refused_before_torch_is_loaded(tmp_path):
    """`new lora` and `train --data` answer a slip of the keys at once."""
    (tmp_path / "a-file").touch()
    code = """
import sys
from reelworks.commands import main
for words in (
    "new lora --model wan --data nowhere", "new lora --model wann -o x.toml", "train --model wan --data nowhere",
    "train --model wann --data a-file", "new lora --model wan --data a-file",
):
    sys.argv = ["reelworks", *words.split()]
    try:
        main.main()
    except SystemExit as left:
        assert left.code == 2, left.code
assert "torch" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=tmp_path, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("error")]
    model, folder = "--model = 'wann': there is no such model", "--data = 'nowhere': there is no such folder"
    file = "--data = 'a-file': this is a file, not a folder"
    assert [line.removeprefix("error: ") for line in told] == [folder, model, folder, model, file]
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]


@pytest.mark.slow
def test_none_of_them_loads_torch(tiny, tmp_path):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(recipe_file.dump(recipe_file.parse(tiny())), encoding="utf-8")
    (tmp_path / "run").mkdir()
    code = f"""
import sys
from reelworks.commands import main
from reelworks.data.run.folder import RunFolder
def typed(*words):
    sys.argv = ["reelworks", *words]
    try:
        main.main()
    except SystemExit as left:
        assert not left.code, left.code
run = {str(tmp_path / "run")!r}
typed("contact-sheet", {str(recipe)!r}, "--json")
typed("inspect", run + "/catalog")
from pathlib import Path
RunFolder(Path(run)).create()
Path(run, "recipe.toml").write_text(Path({str(recipe)!r}).read_text(encoding="utf-8"), encoding="utf-8")
typed("coverage", run)
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert "no epoch has begun" in done.stdout


@pytest.mark.slow
def test_a_plan_tells_what_becomes_of_incomplete_batches_and_of_auto_buckets(tiny, tmp_path, typed):
    """Every way to treat them, in all three forms that a plan is told in."""
    recipe = tmp_path / "recipe.toml"
    told = {
        "partial": "trained with fewer clips",
        "pad": "padded with copies of weight 0",
        "merge": "whose clips fit no smaller bucket",
        "repeat": "repeated clips",
    }
    for way, words in told.items():
        recipe.write_text(
            recipe_file.dump(recipe_file.parse(tiny(buckets={"incomplete_batch": way}))), encoding="utf-8"
        )
        said, code = typed("plan", recipe, "--world", 2, "--html", tmp_path / f"{way}.html")
        assert code == 0
        assert words in said
        value = json.loads(typed("plan", recipe, "--json")[0])
        assert (value["repeated"] > 0) == (way == "repeat")
        assert way in (tmp_path / f"{way}.html").read_text(encoding="utf-8")
    made = tiny(train={"max_steps": 3})
    del made["bucket"]
    made["buckets"] = "auto"
    recipe.write_text(tomli_w.dumps(made), encoding="utf-8")
    said, code = typed("plan", recipe)
    assert code == 0
    assert "entries proposed, which the run will store" in said
    assert children.train(made) == [0]
    frozen = recipe_file.load(tmp_path / "run" / "recipe.toml")
    assert frozen.bucket
    assert frozen.buckets.entries == "keep"
    made["train"]["max_steps"] = 5
    assert children.train(made) == [0]
    assert recipe_file.load(tmp_path / "run" / "recipe.toml").bucket == frozen.bucket
    said, code = typed("coverage", tmp_path / "run")
    assert code == 0
    assert "adds up" in said


def test_a_list_is_scanned_inspected_and_planned(tmp_path, typed):
    """The verbs take a list where they take a folder, and say what became of its columns."""
    (tmp_path / "clips").mkdir()
    (tmp_path / "lists").mkdir()
    for i in range(4):
        Image.new("L", (64, 48), i).save(tmp_path / "clips" / f"{i}.png")
    rows = "".join(f"{tmp_path}/clips/{i}.png,a cat,{i}.5,\n" for i in range(4))
    listed = tmp_path / "lists" / "meta.csv"
    listed.write_text("path,text,aes,cmotion\n" + rows, encoding="utf-8")
    told, code = typed("scan", listed, "-o", tmp_path / "catalog")
    assert code == 2
    assert f'root = "{tmp_path}/clips"' in told
    told, code = typed("scan", listed, "-o", tmp_path / "catalog", "--root", tmp_path / "clips")
    assert code == 0
    assert "scores aes; ignored: cmotion (empty)" in told
    told, _ = typed("inspect", tmp_path / "catalog", "--html", tmp_path / "page.html")
    assert "aes (score)" in told
    recipe = tmp_path / "recipe.toml"
    dataset = {"path": str(listed), "root": str(tmp_path / "clips"), "filter": "aes > 1"}
    made = {"version": 1, "dataset": [dataset], "model": {"name": "stdit3-tiny"}, "train": {"max_epochs": 1}}
    made |= {"output": str(tmp_path / "run"), "buckets": "auto", "validation": {"split": 0.0}}
    recipe.write_text(tomli_w.dumps(made), encoding="utf-8")
    told, code = typed("plan", recipe)
    assert code == 0
    assert "scores aes" in told
    assert "filtered: 1" in told
