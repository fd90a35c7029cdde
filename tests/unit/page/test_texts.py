"""The page's fixed texts and those of its Chinese table are the same: none is missing, and none translates what is no more."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, get_args

from reelworks.annexes.page import clips, jobs
from reelworks.reports import run_facts

STATIC = Path(__file__).parents[3] / "src" / "reelworks" / "annexes" / "page" / "static"
PLOTS = (STATIC.parents[2] / "reports" / "plots.py").read_text("utf-8")
SERVER = (STATIC.parents[2] / "reports" / "run_facts.py").read_text("utf-8") + PLOTS
SERVER += "".join(path.read_text("utf-8") for path in sorted(STATIC.parent.glob("*.py")))
SCRIPTS = {path.relative_to(STATIC).as_posix(): path.read_text("utf-8") for path in sorted(STATIC.rglob("*.js"))}
# Literals that look like texts and are none: keys, errors and headers by their names, selectors, what is searched or typed.
NOT_TEXTS = {
    *("Enter", "Escape", "ArrowLeft", "ArrowRight", "Ctrl", "AbortError", "Content-Type"),
    *("textarea, input", "input, textarea, select, dialog", "input, select, textarea", ".skip, nav a, #read-only"),
    *("(prefers-reduced-motion: reduce)", "(prefers-color-scheme: dark)", "caption of {0} {1}", "reelworks ui . {0}"),
    *("adds up", "under way", "not started", "video clips", "pictures images", "wan, flux, qwen …", "ohwx cat"),
}
_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|(?P<string>"(?:\\.|[^"\\\n])*")|(?P<template>(?:(?<![\w.])t)?`)|[{}]""", re.DOTALL
)
_NOUN = re.compile(r"plural\([^\"()]*(?:\([^\"()]*\)[^\"()]*)*, \"([^\"]+)\"\)")
_FRAME = re.compile(r"<(?:a|span)[^>]*>([^<]+)</|<nav[^>]*aria-label=\"([^\"]+)\"")
_LABEL = re.compile(r"""(?:\bFact\(|_state_row\(|(?:_figure|Facet|_Measure)\("[\w-]+",)\s*"([A-Za-z][^"]*)\"""")
_NOTE = re.compile(r"""(?<!")" ?([A-Z][^"{}]*\.)"(?!")""")  # above a figure, as sentences
_LIKE_A_TEXT = re.compile(r"[A-Za-z]{2}[,;:]? [a-z]{2}|^[A-Z][a-z]")


class Literal(NamedTuple):
    """A string or template of a script: its text with values as {0}, {1}, whether `t` marks it, and where it ends."""

    text: str
    is_marked: bool
    end: int


def literals(source: str, start: int = 0, *, is_value: bool = False) -> Iterator[Literal]:
    """Yield the literals of a script, or of a value within a template up to its closing brace, which ends the last one."""
    place, depth = start, 0
    while found := _TOKEN.search(source, place):
        place = found.end()
        if found["string"]:
            yield Literal(found["string"][1:-1], False, place)
        elif found["template"]:
            text, values = "", 0
            while source[place] != "`":
                if source.startswith("${", place):
                    *inner, closing = literals(source, place + 2, is_value=True)
                    yield from inner
                    text, values, place = f"{text}{{{values}}}", values + 1, closing.end
                else:
                    text, place = text + source[place], place + 1
            place += 1
            yield Literal(text, found["template"] == "t`", place)
        elif found[0] == "{":
            depth += 1
        elif found[0] == "}":
            depth -= 1
            if is_value and depth < 0:
                yield Literal("", False, place)
                return


def texts_of(scripts: dict[str, str], frame: str) -> set[str]:
    """Return what the table translates: marked literals, nouns that are counted, and what stands in index.html."""
    marked = {one.text for source in scripts.values() for one in literals(source) if one.is_marked}
    nouns = {f"{{0}} {noun}" for source in scripts.values() for noun in _NOUN.findall(source)}
    return marked | nouns | {text or label for text, label in _FRAME.findall(frame)}


def labels_of_the_server() -> set[str]:
    """Return the names of states, figures, measures and orders that the page shows as the server sends them."""
    coverage = re.findall(r'"([^"]+)"', re.findall(r"    state: str  # (.*)", SERVER)[0])
    reasons = {text for pair in (run_facts.REASONS | run_facts.FAILURES).values() for text in pair}
    states = {"planned", "readable"}  # beside reasons
    return {
        *_LABEL.findall(SERVER),
        *(sentence for note in _NOTE.findall(PLOTS) for sentence in re.split(r"(?<=\.) ", note)),
        *clips.SORTS.values(),
        *get_args(jobs.State),
        *coverage,
        *reasons,
        *states,
    }


def unmarked(source: str) -> list[str]:
    """Return the literals of a script that look like texts and have no mark."""
    nouns = _NOUN.findall(source)
    found = [one.text for one in literals(source) if not one.is_marked and _LIKE_A_TEXT.search(one.text)]
    return [text for text in found if text not in nouns and text not in NOT_TEXTS]


def test_the_table_has_each_text_once_and_no_other() -> None:
    pairs = json.loads((STATIC / "zh.json").read_text("utf-8"), object_pairs_hook=list)
    texts = texts_of(SCRIPTS, (STATIC / "index.html").read_text("utf-8")) | labels_of_the_server()
    known = Counter(text for text, _ in pairs)
    assert sorted(texts - known.keys()) == [], "these are not translated: add them to zh.json"
    assert sorted(known.keys() - texts) == [], "these are no longer on the page: take them out of zh.json"
    assert [text for text, n in known.items() if n > 1] == []


def test_translations_have_the_values_of_their_texts() -> None:
    table = json.loads((STATIC / "zh.json").read_text("utf-8"))
    values = re.compile(r"\{\d\}")
    assert [text for text, now in table.items() if set(values.findall(text)) != set(values.findall(now))] == []


def test_no_text_stands_unmarked_in_a_script() -> None:
    found = {name: texts for name, source in SCRIPTS.items() if (texts := unmarked(source))}
    assert found == {}, "mark these with t`...`, and add them to zh.json"
    everywhere = {one.text for source in SCRIPTS.values() for one in literals(source)}
    assert everywhere >= NOT_TEXTS, "an exception is no more"


def test_each_counted_noun_is_found() -> None:
    for name, source in SCRIPTS.items():
        assert len(_NOUN.findall(source)) == len(re.findall(r"(?<!function )\bplural\(", source)), name


def test_texts_are_read_out_of_nested_templates() -> None:
    source = """
    // t`of a comment`
    h("p", t`Train`, `plain ${t`step ${count(step)}`} · ${{ a: 1 }[key]}`, plural(about().clips, "clip"), title.of`no`);
    if (x) { h("p", "Not marked"); toast(`saved in ${path}`); }
    /* "of another" */ fill(box, t`${plural(n, "file")} of ${name ? `“${name}”` : t`none`}`, "aria-label");
    """
    frame = '<nav class="top" aria-label="Pages"><a href="#">Runs</a></nav>'
    expected = {"Train", "step {0}", "{0} clip", "{0} file", "{0} of {1}", "none", "Pages", "Runs"}
    assert texts_of({"a.js": source}, frame) == expected
    assert unmarked(source) == ["Not marked", "saved in {0}"]
