"""What pages of the documentation tell people to type is what the command line takes, and it prints what they say."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path
from typing import Any

import pages
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from reelworks.commands.main import app
from reelworks.quickstart import quickstart
from reelworks.quickstart.request import NewLoraRequest

PAGES = sorted(
    path.relative_to(pages.ROOT).as_posix()
    for folder in ("docs/start", "docs/how-to", "docs/concepts", "docs/models")
    for path in (pages.ROOT / folder).glob("*.md")
)
LORA = "docs/how-to/train-a-lora.md"


def twenty_pictures(folder: Path) -> None:
    """Pictures that fill the largest size, without captions."""
    folder.mkdir()
    for i in range(20):
        Image.new("RGB", (1024, 1024), (10 * i, 90, 20)).save(folder / f"mug-{i:02}.jpg")


@functools.cache
def command_line() -> Any:
    return typer.main.get_command(app)


def parse(words: list[str]) -> None:
    """Let the command line read a command, without running it."""
    command = command_line()
    context, rest = command.make_context(words[0], words[1:]), words[1:]
    while hasattr(command, "resolve_command"):
        _, command, rest = command.resolve_command(context, rest)
        context = command.make_context(rest[0] if rest else "", list(rest), parent=context)


@pytest.mark.parametrize("page", [*PAGES, "README.md"])
def test_each_command_of_a_page_is_one(page: str) -> None:
    """Verbs, options and the number of arguments; names in capitals stand for people's own."""
    for words in pages.commands(page):
        parse(words)


def test_a_recipe_for_twenty_pictures_is_printed_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    twenty_pictures(Path("pictures"))
    (command,) = [words for words in pages.commands(LORA) if words[1] == "new"]
    done = CliRunner().invoke(app, command[1:])
    assert done.exit_code == 0, done.output
    said = pages.printed_after(LORA, shlex.join(command))
    lines = done.output.splitlines()
    told = lines[lines.index(next(line for line in lines if line.startswith("data:"))) :]
    # The page's pictures have no captions, as it says of --trigger; it leaves out what is said of them.
    assert [re.sub(r", \d+ without a caption", "", line) for line in told[: len(said)]] == said
    assert Path("mug.toml").is_file()


def test_the_table_of_small_gpus_says_what_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPU and CPU memory of each row, for each GPU that it names."""
    monkeypatch.chdir(tmp_path)
    text = (pages.ROOT / LORA).read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `([\w-]+)` on ([\d or]+) GB \|.*\| ([\d.]+) GB \|(?: ([\d.]+) GB)?[^|]*\|$", text, re.MULTILINE
    )
    assert len(rows) > 8
    for model, gpus, on_gpu, in_cpu in rows:
        for gpu in gpus.split(" or "):
            made = quickstart.lora(NewLoraRequest(model=model, vram_gb=float(gpu), output="made.toml", force=True))
            memory = made.choice.estimate.memory
            host = f"{memory.host / 1e9:.1f}" if memory.host >= 5e7 else ""
            assert (f"{memory.total / 1e9:.1f}", host) == (on_gpu, in_cpu), (model, gpu)
