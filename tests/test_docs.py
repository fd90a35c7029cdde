"""The documentation builds strictly: planted faults are found, and the API page shows every public name."""

from __future__ import annotations

import html
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import build_docs
import pytest

import reelworks as rw
from reelworks.inference.generate import export_run
from reelworks.training.loop import trainer

ROOT = Path(__file__).resolve().parents[1]
CONFIG = """
[project]
site_name = "Small"
use_directory_urls = false
nav = [{ "Home" = "index.md" }, { "More" = ["more/page.md"] }]
[project.theme]
font = false
"""
# Names that the page describes where they are defined.
DEFINED = {
    "check_attention": "reelworks.models.attention.attention_audit.check_attention",
    "export": "reelworks.inference.generate.export_run.export",
    "load_model": "reelworks.inference.generate.load_run.load_model",
    "objectives": "reelworks.models.objectives.objectives",
    "plan": "reelworks.training.plan.plan.plan",
    "samplers": "reelworks.models.objectives.samplers.functions",
    "train": "reelworks.training.loop.trainer.train",
}

FUNCTIONS = {"export": export_run.export, "train": trainer.train}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A site of two pages."""
    (tmp_path / "docs" / "more").mkdir(parents=True)
    (tmp_path / "zensical.toml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n[page](more/page.md)\n", encoding="utf-8")
    (tmp_path / "docs" / "more" / "page.md").write_text(
        "# Page\n\n[home](../index.md) [itself](#page)\n", encoding="utf-8"
    )
    return tmp_path


def append(file: Path, text: str) -> None:
    file.write_text(file.read_text(encoding="utf-8") + "\n" + text + "\n", encoding="utf-8")


def build(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "build_docs.py"), str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")


def test_every_page_has_a_place_and_names_are_there() -> None:
    assert build_docs.misplaced(ROOT) == []
    assert build_docs.broken_names(ROOT) == []


def test_a_page_without_a_place_and_a_place_without_a_page_are_found(small: Path) -> None:
    assert build_docs.misplaced(small) == []
    (small / "docs" / "more" / "lost.md").write_text("# Lost\n", encoding="utf-8")
    assert build_docs.misplaced(small) == [
        "docs/more/lost.md: has no place in `nav` of zensical.toml",
        "docs/more/lost.md: docs/index.md does not link it",
    ]
    (small / "docs" / "more" / "lost.md").unlink()
    (small / "docs" / "more" / "page.md").rename(small / "docs" / "more" / "other.md")
    assert "zensical.toml: `nav` names more/page.md, which is not there" in build_docs.misplaced(small)


def test_names_of_files_that_are_not_there_are_found(small: Path) -> None:
    (small / "README.md").write_text(
        "[docs](docs/index.md) [gone](docs/gone.md#a) [web](https://example.org/a)\n", encoding="utf-8"
    )
    append(small / "docs" / "index.md", "`examples/gone.py` `train/gone.py` `train/there.py` `src/reelworks/new.py`")
    (small / "src" / "reelworks" / "train").mkdir(parents=True)
    (small / "src" / "reelworks" / "train" / "there.py").touch()
    assert build_docs.broken_names(small) == [
        "README.md: docs/gone.md is not there",
        "docs/index.md: examples/gone.py is not there",
        "docs/index.md: train/gone.py is not there",
    ]


def test_a_link_of_the_built_site_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text('<h1 id="here">Other</h1>', encoding="utf-8")
    for link in ("other.html#here", "other.html", "#top", "https://example.org"):
        (tmp_path / f"good-{len(link)}.html").write_text(f'<a id="top" href="{link}"></a>', encoding="utf-8")
    assert build_docs.broken_links(tmp_path) == []
    (tmp_path / "bad.html").write_text(
        '<a href="gone.html"></a><a href="other.html#gone"></a><a href="../../x"></a><img src="gone.png">'
        '<script src="https://example.org/a.js"></script>',
        encoding="utf-8",
    )
    assert build_docs.broken_links(tmp_path) == [
        "bad.html: gone.html leads to no file of the site",
        "bad.html: other.html#gone leads to no anchor",
        "bad.html: ../../x leads to no file of the site",
        "bad.html: gone.png leads to no file of the site",
        "bad.html: https://example.org/a.js is loaded from a network",
    ]


def test_a_list_that_became_text_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<p>a - b\n1.5 of 2.</p><ul><li><p>one</p></li></ul>", encoding="utf-8")
    assert build_docs.lost_lists(tmp_path) == []
    (tmp_path / "page.html").write_text("<p>Steps:\n- one\n- two</p><p>3.  Train</p>", encoding="utf-8")
    found = build_docs.lost_lists(tmp_path)
    assert [fault.partition(" stands")[0] for fault in found] == ["page.html: '- one'", "page.html: '3.  Train'"]


@pytest.mark.slow
def test_the_strict_build_refuses_what_is_planted(small: Path) -> None:
    built = build(small)
    assert built.returncode == 0, built.stderr
    page = small / "docs" / "more" / "page.md"
    good = page.read_text(encoding="utf-8")
    for planted in ("[gone](gone.md)", "[gone](../index.md#gone)"):
        page.write_text(good, encoding="utf-8")
        append(page, planted)
        built = build(small)
        assert built.returncode == 1, planted
        assert "error: zensical build --strict" in built.stderr
    page.write_text(good, encoding="utf-8")
    append(page, "[out](../../zensical.toml)")
    (small / "docs" / "lost.md").write_text("# Lost\n", encoding="utf-8")
    built = build(small)
    assert built.returncode == 1
    assert "docs/lost.md: has no place" in built.stderr
    assert "more/page.html: ../../zensical.toml leads to no file of the site" in built.stderr


@pytest.mark.slow
def test_the_api_page_shows_every_public_name_with_its_arguments_and_example(tmp_path: Path) -> None:
    for name in ("docs", "src"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=tmp_path, check=True)
    page = (tmp_path / "site" / "reference" / "api.html").read_text(encoding="utf-8")
    page = page[page.index("<article") : page.index("</article>")]
    for name in rw.__all__:
        value = FUNCTIONS.get(name, getattr(rw, name))
        section = text_of(section_of(page, DEFINED.get(name, f"reelworks.{name}")))
        assert f"reelworks.{name}" in section
        document = inspect.getdoc(value) or ""
        assert words(document.partition("\n\n")[0]) in words(section), name
        if inspect.isclass(value) or inspect.isfunction(value):
            if "Examples:" in document:
                assert ">>> import" in section, name
            for argument in re.findall(r"^    (\w+): ", document.partition("Returns:")[0], flags=re.MULTILINE):
                assert argument in section, (name, argument)


def section_of(page: str, identifier: str) -> str:
    """From a heading to the next of its level or above."""
    start = re.search(rf'<h(\d) id="{re.escape(identifier)}"', page)
    assert start, f"{identifier} is not on the page"
    end = re.search(rf"<h[1-{start[1]}] ", page[start.end() :])
    return page[start.start() : start.end() + end.start() if end else None]


def text_of(section: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", section))


def words(text: str) -> str:
    return " ".join(re.sub(r"[`*]", "", text).split())
