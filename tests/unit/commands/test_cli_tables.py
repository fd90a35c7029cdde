"""Tables show every value whole in the width of the terminal."""

import re

import pytest
from typer.testing import CliRunner

from reelworks.commands import catalog, show
from reelworks.commands.main import app

TIMES = [str(time) for time in range(100, 1100, 100)]


@pytest.fixture
def printed(monkeypatch, capsys):
    def run(headings, row, columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        show.table(headings, [row])
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_columns_without_room_follow_in_further_tables(printed, columns):
    """Each number is printed once and whole, and the first column is repeated for those that follow."""
    lines = printed(("bucket", *TIMES), ("768×432, 97 frames", *(f"0.{time}" for time in TIMES)), columns)
    assert max(map(len, lines)) <= columns
    rows = [line.split() for line in lines if "768×432" in line]
    assert [cell for row in rows for cell in row if cell.startswith("0.")] == [f"0.{time}" for time in TIMES]
    headings = [line.split()[1:] for line in lines if line.startswith(" bucket")]
    assert [name for row in headings for name in row] == TIMES
    assert len(rows) == len(headings) == {40: 5, 80: 2, 200: 1}[columns]


def test_long_texts_are_folded(printed):
    """A text that is longer than the terminal is wide is printed whole, over several lines of one table."""
    lines = printed(("key", "a", "b"), ("samples.prompts", "a cat sits on a wall in the sun " * 4, "waves"), 60)
    assert max(map(len, lines)) <= 60
    assert " ".join(lines).split().count("cat") == 4
    assert sum("key" in line for line in lines) == 1


def test_a_scan_says_how_many_files_it_cannot_read_and_why(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "_BAD_FILES_SHOWN", 1)
    for name in "ab":
        (tmp_path / f"{name}.png").write_bytes(b"no picture")
    said = CliRunner().invoke(app, ["scan", str(tmp_path), "-o", str(tmp_path / "catalog")]).output
    assert re.search(r"^  2 × \S", said, re.MULTILINE)
