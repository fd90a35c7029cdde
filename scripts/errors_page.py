"""docs/reference/errors.md: every sentence that a mistake is told with, by its code; read from the source.

python scripts/errors_page.py > docs/reference/errors.md
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "reelworks"
_OWN_CODES = {"DtypeError": "dtype-mismatch", "ConfigError": "config-unreadable"}
_ERRORS = (
    "UserError",
    "ExportFailed",
    "SaveFailed",
    "LockLost",
    "ListError",
    "MirrorError",
    "MirrorAway",
    *_OWN_CODES,
)
_HEAD = """# Errors

<!-- Written by `make reference` from the source; do not edit. -->

A mistake that a person can mend ends a command with exit code 2 and is told in two parts: what is wrong, with the
recipe key, option or file and its value, and a remedy. Each kind has a code that stays when its sentence is improved; in
Python it is `error.code`, beside `error.field`, `error.value`, `error.problem` and `error.remedy`. `…` stands for a value.

| code | what is wrong → remedy |
|---|---|"""


class Sentence(NamedTuple):
    """One place that refuses something."""

    code: str
    problem: str
    remedy: str


def sentences() -> Iterator[Sentence]:
    """Read the sentences of all places that name their code."""
    for file in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        yield from _sentences(tree, {})


def _sentences(scope: ast.AST, texts: dict[str, str]) -> Iterator[Sentence]:
    """Read a function or a module; a name is worth the texts that are assigned to it in there."""
    texts = texts | _assigned(scope)
    for node in ast.iter_child_nodes(scope):
        yield from _sentences(node, texts) if isinstance(node, ast.FunctionDef) else _inside(node, texts)


def _inside(node: ast.AST, texts: dict[str, str]) -> Iterator[Sentence]:
    if isinstance(node, ast.FunctionDef):
        yield from _sentences(node, texts)
        return
    if isinstance(node, ast.Call) and _name(node.func) in _ERRORS and node.args:
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        problem, remedy = _text(node.args[0], texts), _text(given["remedy"], texts)
        for code in _codes(given["code"]) if "code" in given else [_OWN_CODES[_name(node.func)]]:
            yield Sentence(code, problem, remedy)
    for child in ast.iter_child_nodes(node):
        yield from _inside(child, texts)


def _assigned(scope: ast.AST) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for node in ast.walk(scope) if isinstance(scope, ast.FunctionDef) else ():
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            for name, value in pairs:
                if isinstance(name, ast.Name) and (text := _text(value, {})) != "…":
                    found.setdefault(name.id, []).append(text)
    return {name: " / ".join(dict.fromkeys(each)) for name, each in found.items()}


def _name(node: ast.expr) -> str:
    names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
    return next((name for name in names if name in _ERRORS), "")


def _codes(node: ast.expr) -> list[str]:
    """All codes that an expression may be; of another error's, none."""
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def _text(node: ast.expr, texts: dict[str, str]) -> str:
    """A text as the source has it, with … for each value; both sides of a choice."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(value, texts) for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left, texts) + _text(right, texts)
        case ast.IfExp(body=body, orelse=orelse):
            return f"{_text(body, texts)} / {_text(orelse, texts)}"
        case ast.FormattedValue(value=value):
            return _text(value, texts) if isinstance(value, ast.Name) else "…"
        case ast.Name(id=name):
            return texts.get(name, "…")
        case _:
            return "…"


def page() -> str:
    """The table of all codes, as docs/reference/errors.md; a sentence of which nothing is known only where there is no other."""
    by_code: dict[str, list[Sentence]] = {}
    for one in sorted({*sentences()}):
        by_code.setdefault(one.code, []).append(one)
    rows = []
    for code, all_of_code in by_code.items():
        known = [one for one in all_of_code if one.problem != "…"] or all_of_code
        rows.append(f"| `{code}` | {'<br>'.join(f'{_cell(one.problem)} → {_cell(one.remedy)}' for one in known)} |")
    return "\n".join([_HEAD, *rows, ""])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[")


if __name__ == "__main__":
    print(page(), end="")
