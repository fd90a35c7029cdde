"""Figures of benchmarks are kept only where asked, with the commit and the load that they were measured at."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import _results

BENCHMARKS = Path(_results.__file__).parent
FOLDERS = (BENCHMARKS, BENCHMARKS.parent / "drills")
KEPT = re.compile(r"^ *keep(?:_figures)?\(RESULTS", re.MULTILINE)


def test_benchmarks_keep_figures_through_one_function_and_only_where_asked() -> None:
    sources = {
        path.name: path.read_text(encoding="utf-8")
        for folder in FOLDERS
        for path in folder.glob("*.py")
        if path.name != "_results.py"
    }
    assert [name for name, text in sources.items() if "RESULTS.write_text(" in text] == []
    keeping = {name: text for name, text in sources.items() if KEPT.search(text)}
    assert len(keeping) > 10
    for name, text in keeping.items():
        for found in KEPT.finditer(text):
            before = text[: found.start()].splitlines()[-4:]
            assert any(re.match(r" *if .*\.save\b", line) for line in before), name


def test_what_is_kept_has_its_commit_and_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(_results.machine, "cores", lambda: 4)
    monkeypatch.setattr(_results, "AT_START", {"commit": "abc", "load_average": 0.5})
    file = tmp_path / "results" / "one.json"
    _results.keep(file, {"ms": 3}, "1000")
    _results.keep(file, {"s": 4}, "1000")
    _results.keep(file, {"ms": 5}, "2000")
    at = {"commit": "abc", "load_average": 0.5}
    assert json.loads(file.read_text(encoding="utf-8")) == {"1000": {"ms": 3, "s": 4, **at}, "2000": {"ms": 5, **at}}
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(_results, "AT_START", {"commit": "abc", "load_average": 3.0})
    _results.keep(file, {"ms": 6})
    assert json.loads(file.read_text(encoding="utf-8")) == {"ms": 6, "commit": "abc", "load_average": 3.0}
    assert "busy machine" in capsys.readouterr().err
