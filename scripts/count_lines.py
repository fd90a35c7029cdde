"""Count lines of code: python scripts/count_lines.py [FOLDER]

Lines of code are not blank, and not comments, docstrings or imports. In tests, lines of tests are those of functions and methods
whose names begin with `test`; all others are helpers.
"""

from __future__ import annotations

import ast
import sys
import tokenize
from collections import Counter
from pathlib import Path

_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
_TESTS = ("tests", "drills/tests", "benchmarks/tests")
_SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(file: Path) -> tuple[set[int], ast.Module]:
    """Return the numbers of a file's lines of code, and its syntax tree."""
    with tokenize.open(file) as opened:
        tokens = [t for t in tokenize.generate_tokens(opened.readline) if t.type not in _NO_CODE]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            lines -= _lines_of(node)
        if isinstance(node, _SCOPES) and ast.get_docstring(node, clean=False) is not None:
            lines -= _lines_of(node.body[0])
    return lines, tree


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


def _lines_of(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


if __name__ == "__main__":
    for kind, number in count(Path(sys.argv[1] if len(sys.argv) > 1 else ".")).items():
        print(f"{kind}: {number:,}")
