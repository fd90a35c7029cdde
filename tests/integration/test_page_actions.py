"""What is done on the page in a real browser: a folder is dropped, code is asked about, weights are taken."""

from __future__ import annotations

import json
import shutil
import urllib.request

import fabricate
import prepare_files
import pytest
from headless import went_to, window
from page_client import served, small_recipe


def drop(shown, where, *paths):
    """Drop files or folders of the disk, as the system does: scripts cannot make a drop with folders."""
    box = shown.locator(where).bounding_box()
    place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
    session = shown.context.new_cdp_session(shown)
    for kind in ("dragEnter", "dragOver", "drop"):
        session.send("Input.dispatchDragEvent", {"type": kind, **place, "data": data})


@pytest.mark.slow(reason="a hundred files by a browser; single files are sent in the recipes' tests")
def test_a_dropped_folder_arrives_with_all_that_can_be_trained_on(opened, tmp_path):
    root, given = tmp_path / "root", tmp_path / "mein Kätzchen 猫"
    root.mkdir()
    for number in range(102):  # a browser lists a hundred at a time
        prepare_files.picture(given / f"{number:03}.png", size=(16, 16))
    prepare_files.picture(given / "inner/deep.png", size=(16, 16))
    (given / ".hidden.png").write_bytes(b"")
    (given / "notes.sh").write_text("no footage", encoding="utf-8")
    with served(root) as address, window(opened) as shown:
        went_to(shown, address, "#/new", ".new-drop")
        drop(shown, ".new-drop", given)
        shown.wait_for_selector("text=102 pictures, 102 captions")
        (sent,) = (root / "footage").iterdir()
        taken = sorted(path for path in given.rglob("*") if path.suffix in (".png", ".txt") and path.name[0] != ".")
        arrived = sorted(path for path in sent.rglob("*") if path.is_file())
        assert [path.relative_to(sent) for path in arrived] == [path.relative_to(given) for path in taken]
        assert [path.read_bytes() for path in arrived] == [path.read_bytes() for path in taken]
        assert sent.name == given.name
        assert shown.locator("input[name=folder]:checked").count() == 1
        shutil.rmtree(sent / "inner")  # the only folder is chosen when the page is opened, too
        shown.evaluate("sessionStorage.clear()")
        shown.reload()
        shown.wait_for_selector("input[name=folder]:checked")


@pytest.mark.parametrize("agrees", [False, True])
@pytest.mark.quick_cases(1)
def test_code_that_a_recipe_names_runs_only_after_it_was_agreed_to(opened, tmp_path, monkeypatch, agrees):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('ran', 'w')\nSharp = None\n", encoding="utf-8")
    recipe = small_recipe("run", "none", num_frames=(1,), aspect_ratios=()).replace("[3, 2]", "[3]")
    (tmp_path / "cats.toml").write_text(
        recipe + '[samples]\nprompts = ["a cat"]\nmetrics = ["evil.py:Sharp"]\n', encoding="utf-8"
    )
    with served(tmp_path) as address, window(opened, tolerates="400") as shown:

        def jobs():
            with urllib.request.urlopen(address.split("/#")[0] + "/api/jobs") as answer:
                return json.loads(answer.read())

        went_to(shown, address, "#/runs", "text=cats.toml")
        shown.click("tr:has-text('cats.toml') button:text-is('Train')")
        shown.wait_for_selector("dialog")
        assert str(tmp_path / "evil.py") in shown.text_content("dialog")
        assert jobs() == []
        shown.click("dialog button:text-is('Trust it and train')" if agrees else "dialog button:text-is('Cancel')")
        shown.wait_for_selector("dialog", state="detached")
        if agrees:
            shown.wait_for_selector("h2:text-is('Started here')")
            assert [job["kind"] for job in jobs()] == ["train"]
            with shown.expect_response("**/train") as answer:  # it is asked about once
                shown.click("tr:has-text('cats.toml') button:text-is('Train')")
            assert answer.value.status == 200
        else:
            shown.wait_for_selector(".toast.bad")
            assert jobs() == []
            assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_weights_of_a_step_are_taken_beside_its_previews(opened, tmp_path):
    run = fabricate.make(tmp_path / "runs" / "first", steps=40, every=20, crash_at=30)
    run.exports_folder.mkdir()
    name = "step-000000040-ema-lora-comfyui.safetensors"
    (run.exports_folder / name).write_bytes(b"weights")
    with served(tmp_path) as address, window(opened) as shown:
        went_to(shown, address, "#/runs", "table")
        with urllib.request.urlopen(address.split("/#")[0] + "/api/runs") as answer:
            (key,) = (one["key"] for one in json.loads(answer.read()))
        went_to(shown, address, f"#/run/{key}/previews", "figure")
        assert str(run.exports_folder / name) in shown.text_content(".use")
        with shown.expect_download() as download:
            shown.click("text=Use this one")
        assert download.value.path().read_bytes() == b"weights"
        shown.keyboard.press("ArrowLeft")
        shown.wait_for_selector(".use:has-text('not exported')")
