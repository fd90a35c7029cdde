"""Count lines of code: python scripts/count_lines.py [FOLDER]

Lines of code are not blank, and not comments, docstrings or imports. In tests, lines of tests are those of functions and methods
whose names begin with `test`; all others are helpers.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

_TESTS = ("tests", "drills/tests", "benchmarks/tests")
_SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(file: Path) -> tuple[set[int], ast.Module]:
    """Return the numbers of a file's lines of code, and its syntax tree."""
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    lines = {n for n, line in enumerate(map(str.strip, text.splitlines()), start=1) if line and line[0] != "#"}
    no_code: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Constant, ast.JoinedStr)):
            lines |= _lines_of(node)  # a text may have blank lines
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            no_code |= _lines_of(node)
        elif isinstance(node, _SCOPES) and ast.get_docstring(node, clean=False) is not None:
            no_code |= _lines_of(node.body[0])
    return lines - no_code, tree


def count(root: Path) -> Counter[str]:
    """Return the lines of code of a project by kind."""
    counts: Counter[str] = Counter()
    for file in (root / "src").rglob("*.py"):
        counts["src"] += len(code_lines(file)[0])
    for file in (file for folder in _TESTS for file in (root / folder).rglob("*.py")):
        lines, tree = code_lines(file)
        functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name.startswith("test"))
        tests = {line for function in functions for line in _lines_of(function)}
        counts["tests"] += len(lines & tests)
        counts["helpers of tests"] += len(lines - tests)
    return counts


def _lines_of(node: ast.stmt | ast.expr) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


if __name__ == "__main__":
    for kind, number in count(Path(sys.argv[1] if len(sys.argv) > 1 else ".")).items():
        print(f"{kind}: {number:,}")
