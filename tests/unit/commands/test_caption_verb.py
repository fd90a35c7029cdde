"""`reelworks caption` tells what it did, in words and in JSON, and by its exit code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import media_makers as media
import pytest
from typer.testing import CliRunner

from reelworks.commands.main import app


def invoke(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["caption", *words])
    return result.exit_code, result.output if result.exception is None or result.exit_code else repr(result.exception)


CAT = f'"{sys.executable}" -c "print(\'A cat.\')"'


def test_the_verb(tmp_path: Path) -> None:
    media.write_picture(tmp_path / "a.png")
    tried = invoke(str(tmp_path), "--command", CAT, "--trigger", "rwcat", "--dry-run")
    assert tried[0] == 0
    assert "rwcat, A cat." in tried[1]
    assert "1 clip: 1 would be captioned, 0 kept, 0 without a caption" in tried[1]
    assert not (tmp_path / "a.txt").exists()
    (tmp_path / "b.png").write_bytes(b"bad")
    code, out = invoke(str(tmp_path), "--command", CAT, "--trigger", "rwcat", "--trigger-out", "--json")
    assert code == 1
    told = json.loads(out)
    assert (told["captioned"], told["kept"], len(told["failed"])) == (1, 0, 1)
    assert told["failed"][0]["clip"].endswith("b.png")
    assert "the trigger word is in no caption" in told["notes"][0]
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "A cat.\n"
    (tmp_path / "b.png").unlink()
    code, out = invoke(str(tmp_path), "--command", CAT)
    assert (code, "1 kept" in out) == (0, True)
    code, out = invoke(str(tmp_path), "--undo")
    assert (code, "put back: 1 file" in out) == (0, True)
    assert not (tmp_path / "a.txt").exists()


@pytest.mark.slow
def test_inspect_looks_through_captions(tmp_path: Path) -> None:
    for i in range(12):
        media.write_picture(tmp_path / f"{i}.png", i)
        (tmp_path / f"{i}.txt").write_text(
            f"{'rwmug' if i else 'rwmgu'}, a picture of a blue mug, {i} {'word ' * 90}", encoding="utf-8"
        )

    def inspect(*words: str) -> str:
        return CliRunner().invoke(app, ["inspect", str(tmp_path / "catalog"), *words]).output

    assert CliRunner().invoke(app, ["scan", str(tmp_path), "-o", str(tmp_path / "catalog")]).exit_code == 0
    told = {
        one["name"]: one
        for one in json.loads(inspect("--trigger", "rwmug", "--text-encoder", "clip", "--json"))["advice"]
    }
    assert told["captions_trigger_misspelt"]["files"] == [f"{tmp_path.name}/0.png"]
    assert told["captions_phrase"]["text"].count('"a picture of a blue mug" (100%)') == 1
    assert told["captions_long"]["text"].startswith("12 captions are longer than 77 tokens")
    assert "captions_long" not in inspect("--text-encoder", "flux", "--json")
    page = tmp_path / "page.html"
    assert "trigger word" in inspect("--trigger", "rwmug", "--html", str(page))
    assert "trigger word" in page.read_text(encoding="utf-8")
    wrong = CliRunner().invoke(app, ["inspect", str(tmp_path / "catalog"), "--text-encoder", "klip", "--json"])
    assert "text-encoder-unknown" in wrong.output
