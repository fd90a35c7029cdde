"""The commands of `docs/start` and `docs/how-to` do what the pages say: they are typed as they stand there, in their order.

Whatever a page tells to type is run, and whatever it says is printed is compared, but for the lines below.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import page_readers
import pages
import pytest
from pages import Printed, Typed
from reader import Reader

PAGES = [
    page
    for page in sorted(
        path.relative_to(pages.ROOT).as_posix()
        for folder in ("docs/start", "docs/how-to")
        for path in (pages.ROOT / folder).glob("*.md")
    )
    if pages.steps(page)
]
# Lines that are not typed here, and why.
NOT_TYPED: dict[str, dict[str, str]] = {
    "docs/start/first-run.md": {
        "make demo": "creates .venv from a package index; test_distribution runs it from a wheel",
        "make install": "creates .venv from a package index",
        ". .venv/bin/activate": "the environment of the tests is active already",
    },
    "docs/how-to/add-a-model.md": dict.fromkeys(
        (
            "python -m pytest -p no:cacheprovider tests/contract -k auraflow-tiny",
            "python scripts/models_page.py > docs/reference/models.md",
            "python scripts/generate_reference.py",
        ),
        "test_add_a_model types them in a copy of the project",
    ),
    "docs/how-to/come-from-open-sora.md": {"reelworks generate --reference FILE": "names an option"},
    "docs/how-to/evaluate.md": {
        "cd VBench && python evaluate.py --videos_path ../vbench --dimension subject_consistency ...": (
            "VBench is a program of its own, with gigabytes of models"
        )
    },
}
# Blocks that are not compared, by their first line, and why.
NOT_COMPARED: dict[str, dict[str, str]] = {
    "docs/how-to/companions.md": {
        "shots/photos/a.jpg     shots/photos/a.txt      shots/photos/night/b.png": "a layout of files, which the reader has",
    },
}
# Blocks whose numbers depend on the machine, by their first line.
LOOSE: dict[str, set[str]] = {
    "docs/start/first-run.md": {"training recipes/demo.toml in runs/first"},
    "docs/how-to/evaluate.md": {"Loss by bucket and timestep:"},
}


@pytest.mark.parametrize("page", PAGES)
def test_each_line_of_a_terminal_is_a_command(page: str) -> None:
    """What is printed stands in blocks of `text`, so that no line of either kind is overlooked."""
    lines = [step.line for step in pages.steps(page) if isinstance(step, Typed)]
    assert [line for line in lines if line.split()[0] not in pages.PROGRAMS] == []


@pytest.mark.parametrize("page", PAGES)
def test_each_page_is_read_by_someone(page: str) -> None:
    """A reader types all lines that are not listed; without a reader, all must be listed."""
    left = [
        step
        for step in pages.steps(page)
        if not (isinstance(step, Typed) and step.line in NOT_TYPED.get(page, {}))
        and not (isinstance(step, Printed) and step.lines[0].strip() in NOT_COMPARED.get(page, {}))
    ]
    assert page in page_readers.READERS or not left


def test_exceptions_are_of_lines_that_are_there() -> None:
    steps = {page: pages.steps(page) for page in PAGES}
    typed = {page: {step.line for step in found if isinstance(step, Typed)} for page, found in steps.items()}
    shown = {
        page: {step.lines[0].strip() for step in found if isinstance(step, Printed)} for page, found in steps.items()
    }
    assert {page for page, lines in NOT_TYPED.items() if not lines.keys() <= typed[page]} == set()
    assert {page for page, lines in NOT_COMPARED.items() if not lines.keys() <= shown[page]} == set()
    assert {page for page, lines in LOOSE.items() if not lines <= shown[page]} == set()
    assert set(page_readers.READERS) <= set(PAGES)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> page_readers.Shared:
    folder = tmp_path_factory.mktemp("shared")
    subprocess.run([sys.executable, "-m", "reelworks", "demo-data", "footage"], cwd=folder, check=True)
    return page_readers.Shared(folder)


@pytest.mark.slow  # each line is a process, and many of them train
@pytest.mark.parametrize("page", [page for page in PAGES if page in page_readers.READERS])
def test_a_page_is_followed_word_by_word(page: str, shared: page_readers.Shared, tmp_path: Path) -> None:
    reader = Reader(
        page,
        tmp_path,
        not_typed=set(NOT_TYPED.get(page, {})),
        not_printed=set(NOT_COMPARED.get(page, {})),
        loose=LOOSE.get(page, set()),
    )
    page_readers.READERS[page](reader, shared)
    reader.reads()
