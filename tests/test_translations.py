"""Pages in Chinese keep step with the English ones: section by section, what no language changes is the same in both.

That is the level of headings, code but for its comments, rows of tables, and the commands, keys, numbers and links in the text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
TRANSLATED = [
    "README.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "start").glob("*.md")),
    *(f"docs/how-to/{name}.md" for name in ("resume-after-changes", "train-a-lora", "come-from-open-sora")),
    *(f"docs/how-to/{name}.md" for name in ("install", "use-windows", "use-a-mac", "use-rocm")),
    *(f"docs/concepts/{name}.md" for name in ("buckets", "checkpoints", "dtype-contract")),
]
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)
_COMMENT = re.compile(r"(^|\s+)# [^#]*$")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_TABLE = re.compile(r"(?:^ *\|.*\n?)+", re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_BOLD = re.compile(r"\*\*(.+?)\*\*(.?)")


class Section(NamedTuple):
    """The part of a page below one heading: its title, and what is the same in every language, in order and in any order."""

    title: str
    ordered: list[str]
    unordered: set[str]


def chinese(page: str) -> str:
    """Return the path of a page's translation."""
    return page.replace("docs/", "docs/zh/", 1) if page.startswith("docs/") else page.replace(".md", ".zh.md")


def english(page: str) -> str:
    """Return the path of the page that one translates; an English page is its own."""
    return page.replace("docs/zh/", "docs/", 1).replace(".zh.md", ".md")


def links_of(page: str, text: str) -> Iterator[str]:
    """Yield where the links of a page lead: paths below the project, with their anchors, and addresses."""
    for target in _LINK.findall(text):
        path, mark, anchor = target.partition("#")
        if "://" not in target:
            path = os.path.normpath(PurePosixPath(page).parent / path) if path else page
        yield f"{path}{mark}{anchor}"


def sections(root: Path, page: str) -> list[Section]:
    """Read a page."""
    text = (root / page).read_text(encoding="utf-8")
    fences = list(_FENCE.finditer(text))
    prose = _FENCE.sub(lambda fence: " " * len(fence[0]), text)
    heads = list(_HEADING.finditer(prose))
    found = []
    for head, end in zip(heads, [*(head.start() for head in heads[1:]), len(text)], strict=True):
        said = prose[head.start() : end]
        plain = _CODE.sub(" ", re.sub(r"\]\([^)]+\)|<[^>]+>", " ", said))
        ordered = [f"a heading of level {len(head[1])}"]
        ordered += [line for fence in fences if head.start() < fence.start() < end for line in code_of(fence)]
        ordered += [f"a table of {len(table.splitlines())} rows" for table in _TABLE.findall(said)]
        unordered = {f"`{' '.join(name.split())}`" for name in _CODE.findall(said)}
        unordered |= {f"the number {number}" for number in _NUMBER.findall(plain)}
        unordered |= {f"a link to {english(link)}" for link in links_of(page, said)}
        found.append(Section(head[2], ordered, unordered))
    return found


def code_of(fence: re.Match[str]) -> list[str]:
    """Return the lines of a block of code, without their comments; what is printed is kept as it is."""
    indent, language, body = fence.groups()
    lines = [line.removeprefix(indent) for line in body.splitlines()]
    return [f"```{language}", *(line if language == "text" else _COMMENT.sub("", line) for line in lines), "```"]


def difference(page: list[Section], translation: list[Section]) -> str | None:
    """Return the first difference between a page and its translation as a sentence, or nothing."""
    for one, two in zip(page, translation, strict=False):
        where = f"below {two.title!r} ({one.title!r})"
        for line, now in zip_longest(one.ordered, two.ordered, fillvalue="nothing"):
            if line != now:
                return f"{where}: {now!r} instead of {line!r}"
        if one.unordered != two.unordered:
            return (
                f"{where}: only in English: {', '.join(sorted(one.unordered - two.unordered)) or 'nothing'}; "
                f"only in Chinese: {', '.join(sorted(two.unordered - one.unordered)) or 'nothing'}"
            )
    return None if len(page) == len(translation) else f"{len(translation)} headings instead of {len(page)}"


@pytest.mark.parametrize("page", TRANSLATED)
def test_a_translation_keeps_step(page: str) -> None:
    found = difference(sections(ROOT, page), sections(ROOT, chinese(page)))
    assert found is None, f"{chinese(page)} differs from {page} {found}"


@pytest.mark.parametrize("page", TRANSLATED)
def test_both_link_each_other_and_chinese_links_chinese(page: str) -> None:
    other = chinese(page)
    assert other in links_of(page, (ROOT / page).read_text(encoding="utf-8"))
    links = [link.partition("#")[0] for link in links_of(other, (ROOT / other).read_text(encoding="utf-8"))]
    assert page in links
    assert [link for link in links if link in TRANSLATED and link != page] == [], "there is a Chinese page of these"


def test_every_chinese_page_is_compared() -> None:
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "zh").rglob("*.md")}
    assert there | {"README.zh.md"} == {*map(chinese, TRANSLATED), "docs/zh/index.md"}


@pytest.mark.parametrize("page", [*map(chinese, TRANSLATED), "docs/zh/index.md"])
def test_bold_is_bold_for_every_reader_of_markdown(page: str) -> None:
    """CommonMark ends bold text nowhere between a full stop and a letter, which in Chinese have no space between them."""
    text = _FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    assert [bold[0] for bold in _BOLD.finditer(text) if re.match(r"\W", bold[1][-1]) and re.match(r"\w", bold[2])] == []


@pytest.mark.parametrize(
    ("former", "now", "told"),
    [
        ("## 第二", "### 第二", "below '第二' ('Second'): 'a heading of level 3' instead of 'a heading of level 2'"),
        ("## 第二\n", "第二\n", "1 headings instead of 2"),
        ("\n```\nreel", "\n## 更多\n\n```\nreel", "below '第一' ('First'): 'nothing' instead of '```'"),
        ("--steps 3", "--steps 4", "'reelworks train --steps 4' instead of 'reelworks train --steps 3'"),
        ("saved\n", "", "'```' instead of 'saved'"),
        ("saved # 1", "saved # 2", "'saved # 2' instead of 'saved # 1'"),
        ("```text", "```", "'```' instead of '```text'"),
        ("| 二 | 2 |\n", "", "'a table of 3 rows' instead of 'a table of 4 rows'"),
        ("`b = 1`", "`b = 2`", "only in English: `b = 1`; only in Chinese: `b = 2`"),
        ("30 秒", "60 秒", "only in English: the number 30; only in Chinese: the number 60"),
        (
            "](../b.md#c)",
            "](../d.md#c)",
            "only in English: a link to docs/b.md#c; only in Chinese: a link to docs/d.md#c",
        ),
    ],
)
def test_planted_differences_are_found(tmp_path: Path, former: str, now: str, told: str) -> None:
    page = "# First\n\nAfter 30 s [b](b.md#c) has\n`b =\n1`.\n\n```\nreelworks train --steps 3  # three\n```\n\n"
    page += "```text\nsaved # 1\nsaved\n```\n\n| a | b |\n|---|---|\n| one | 1 |\n| two | 2 |\n\n## Second\n"
    translation = "# 第一\n\n30 秒后，[b](../b.md#c) 有 `b = 1`。\n\n```\nreelworks train --steps 3  # 三\n```\n\n"
    translation += "```text\nsaved # 1\nsaved\n```\n\n| 甲 | 乙 |\n|---|---|\n| 一 | 1 |\n| 二 | 2 |\n\n## 第二\n"
    (tmp_path / "docs" / "zh").mkdir(parents=True)
    (tmp_path / "docs" / "a.md").write_text(page, encoding="utf-8")
    written = tmp_path / "docs" / "zh" / "a.md"
    written.write_text(translation, encoding="utf-8")
    assert difference(sections(tmp_path, "docs/a.md"), sections(tmp_path, "docs/zh/a.md")) is None
    assert translation.count(former) == 1 or former == "saved\n"
    written.write_text(translation.replace(former, now), encoding="utf-8")
    assert told in str(difference(sections(tmp_path, "docs/a.md"), sections(tmp_path, "docs/zh/a.md")))
