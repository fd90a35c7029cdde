"""Docstrings are sentences, functions have names that mean something by themselves, and a row is one of a table."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import sources

SOURCE = Path(__file__).parents[1] / "src" / "reelworks"
FRAGMENT = re.compile(r"(All|As|Both|Every|How|Of|The same|Those|What|When|Where|Which|Why)\b")
NAMELESS = ("of", "words", "look", "told")
# Classes that have to do with the optimizer steps of a plan, which are not called rows.
OF_STEPS = {
    *("EpochPlan", "DataPosition", "Cursor", "MicroBatchRequest", "StepSource", "StepReader", "ForwardCounts"),
    *("TrainStep", "ExampleBuilder", "About", "Outcome", "RecordedFailure", "Record", "RunStep", "Epoch", "Replay"),
}
# Names of classes that are words of the field, too.
WORDS = {"LoRA", "LoKr", "LoHa", "TensorBoard", "UserError"}
JOINED = re.compile(r"\b[A-Z][a-z]+[A-Z][A-Za-z]+\b")
RAISED = re.compile(r"\s*(\w+, )*\w+: ")  # in a list of what a function raises
COUNTED = re.compile(
    r"(plural\([^{}]*\)\}|(?<!of )\{[^{}]*\} (captions|checkpoints|clips|files|gaps|layers|tensors)) (are|were|have)\b"
)
COUNTED_ALONE = re.compile(r"(?<!of )(?<!its )\{len\([^{}]*\)(:,)?\} (cells|entries|frames|values|weights)\b")
ROW = re.compile(r"(^|_)rows?(_|$)")


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def nodes(root: Path) -> list[tuple[str, Documented]]:
    return [
        (f"{file.relative_to(root)}:{getattr(node, 'lineno', 1)}", node)
        for file in sorted(root.rglob("*.py"))
        for text in [file.read_text(encoding="utf-8")]
        for node in (sources.parsed(text), *sources.statements(text))
        if isinstance(node, Documented)
    ]


def fragments(root: Path) -> list[str]:
    """Docstrings that must be completed from the name above them."""
    return [
        f"{where}: {text.splitlines()[0]}"
        for where, node in nodes(root)
        if (text := ast.get_docstring(node)) and FRAGMENT.match(text)
    ]


def nameless(root: Path) -> list[str]:
    """Functions whose name is nothing in a traceback or a search."""
    return [
        f"{where}: {node.name}"
        for where, node in nodes(root)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in NAMELESS
    ]


def classes_in_prose(root: Path) -> list[str]:
    """Lines of docstrings and comments that use the name of a class as a word, as prose does that a rename has hurt."""
    names = {node.name for _, node in nodes(root) if isinstance(node, ast.ClassDef) and JOINED.fullmatch(node.name)}
    found = []
    for file in sorted(root.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        parsed = [node for node in ast.walk(sources.parsed(text)) if isinstance(node, Documented)]
        said = [line for node in parsed for line in (ast.get_docstring(node) or "").splitlines()]
        said += [line.partition("  # ")[2] or line.partition("# ")[2] for line in text.splitlines() if "# " in line]
        for line in said:
            if line.lstrip().startswith((">>>", "...", "class ")) or RAISED.match(line):
                continue
            words = set(JOINED.findall(re.sub(r"`[^`]*`|\S+\(.*", "", line))) & names - WORDS
            found += [f"{file.relative_to(root)}: {line.strip()}" for _ in words]
    return found


def named_in(node: ast.ClassDef) -> Iterator[tuple[int, str]]:
    """Fields, methods and parameters of a class."""
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            yield part.lineno, part.target.id
        elif isinstance(part, ast.FunctionDef):
            yield part.lineno, part.name
            yield from ((part.lineno, each.arg) for each in (*part.args.args, *part.args.kwonlyargs))


def steps_called_rows(root: Path) -> list[str]:
    return [
        f"{where.split(':')[0]}:{line}: {node.name}, {name}"
        for where, node in nodes(root)
        if isinstance(node, ast.ClassDef) and node.name in OF_STEPS
        for line, name in named_in(node)
        if ROW.search(name)
    ]


def test_no_docstring_begins_with_a_fragment() -> None:
    assert fragments(SOURCE) == []


def test_no_function_needs_its_module_to_mean_anything() -> None:
    assert nameless(SOURCE) == []


def test_a_row_is_one_of_a_table_and_no_step_of_a_plan() -> None:
    assert steps_called_rows(SOURCE) == []
    known = {node.name for _, node in nodes(SOURCE) if isinstance(node, ast.ClassDef)}
    assert known >= OF_STEPS, "a class has another name now"


@pytest.mark.parametrize("counted", [COUNTED, COUNTED_ALONE])
def test_a_noun_and_its_verb_are_those_of_their_number(counted: re.Pattern[str]) -> None:
    """Which `units.plural` and `units.verb` know: "1 clip is", "2 clips are"."""
    found = [
        f"{file.relative_to(SOURCE)}: {match[0]}"
        for file in sorted(SOURCE.rglob("*.py"))
        for match in counted.finditer(file.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_no_sentence_has_the_name_of_a_class_in_place_of_a_word() -> None:
    assert classes_in_prose(SOURCE) == []


def test_planted_ones_are_found(tmp_path: Path) -> None:
    (hurt := tmp_path / "hurt").mkdir()
    (hurt / "c.py").write_text(
        'class ClipView:\n    """ClipView that a query chooses, a `ClipView`."""\n', encoding="utf-8"
    )
    assert classes_in_prose(hurt) == ["c.py: ClipView that a query chooses, a `ClipView`."]
    (tmp_path / "a.py").write_text(
        'def of():\n    """What it is."""\n\ndef sample():\n    """Whatever it is."""\n', encoding="utf-8"
    )
    planted = "class Cursor:\n    next_row: str\n    narrow: int\n\n    def before(self, rows): ...\n"
    (tmp_path / "b.py").write_text(planted, encoding="utf-8")
    assert fragments(tmp_path) == ["a.py:1: What it is."]
    assert nameless(tmp_path) == ["a.py:1: of"]
    assert steps_called_rows(tmp_path) == ["b.py:2: Cursor, next_row", "b.py:5: Cursor, rows"]
