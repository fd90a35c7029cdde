"""Docstrings are sentences, and functions have names that mean something by themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "reelworks"
FRAGMENT = re.compile(r"(All|As|Both|Every|How|Of|The same|Those|What|When|Where|Which|Why)\b")
NAMELESS = ("of", "words", "look", "told")


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def nodes(root: Path) -> Iterator[tuple[str, Documented]]:
    for file in sorted(root.rglob("*.py")):
        name = file.relative_to(root)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, Documented):
                yield f"{name}:{getattr(node, 'lineno', 1)}", node


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


def test_no_docstring_begins_with_a_fragment() -> None:
    assert fragments(SOURCE) == []


def test_no_function_needs_its_module_to_mean_anything() -> None:
    assert nameless(SOURCE) == []


def test_planted_ones_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('def of():\n    """What it is."""\n\ndef sample():\n    """Whatever it is."""\n')
    assert fragments(tmp_path) == ["a.py:1: What it is."]
    assert nameless(tmp_path) == ["a.py:1: of"]
