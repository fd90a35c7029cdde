"""Reader of the literal values of a Python file that does not run it.

Configs of other trainers are Python programs, of which this reads only the syntax tree: numbers, strings, lists,
tuples, sets, dicts, `dict(a=1)`, signs and arithmetic of numbers, and names assigned a literal earlier in the file.
Values that need anything else (a call, an import, a loop) are not read but listed.
"""

from __future__ import annotations

import ast
import operator
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from reelworks.annexes.imports.draft import FormerSettings
from reelworks.annexes.imports.files import ConfigError, flatten
from reelworks.core import user_files
from reelworks.core.errors import UserError

BASE = "_base_"
DELETE = "_delete_"

_MOST = 1e300  # of a number, above which a product could take forever; powers are not read
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


class _NotALiteralError(Exception):
    pass


def read(path: Path, below: tuple[Path, ...] = ()) -> FormerSettings:
    """Read a file and the files that its `_base_` names, with the inheritance of mmengine's configs.

    Returns:
        Values that they assign, and the text of statements that are not literals, by name or by "line 12".
    """
    if Path(os.path.realpath(path)) in below:  # `Path.resolve` raises a `RuntimeError` for a link to itself
        raise UserError(
            "the file is its own base",
            code="opensora-config-own-base",
            field=BASE,
            value=str(path),
            remedy=f"correct {BASE} in the file",
        )
    own = _parse(path)
    bases = own.values.get(BASE, [])
    merged = FormerSettings({})
    for base in bases if isinstance(bases, list | tuple) else [bases]:
        _merge(merged, read(path.parent / str(base).replace("\0", ""), (*below, Path(os.path.realpath(path)))))
    _merge(merged, own)
    merged.values = _without_marks(merged.values)
    return merged


def _parse(path: Path) -> FormerSettings:
    result = FormerSettings({})
    try:
        tree = ast.parse(user_files.read_bytes(path, user_files.SETTINGS), filename=str(path))
        for statement in tree.body:
            _statement(statement, result)
    except OSError as error:
        problem = f"the config cannot be read ({error.strerror})"
        raise ConfigError(problem, path, code="file-unreadable", remedy="check the path") from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = "" if line is None else f" (line {line})"
        raise ConfigError(
            f"this is not a Python file{where}: {getattr(error, 'msg', error)}",
            path,
            code="opensora-config-not-python",
            remedy="give a config of Open-Sora, such as configs/opensora-v1-2/train/stage1.py",
        ) from error
    flatten(result.values)  # a few lines can stand for more values than any memory holds
    return result


def _statement(statement: ast.stmt, result: FormerSettings) -> None:
    """Read what a statement assigns, or list it as unread and forget all names that it may have changed."""
    try:
        assigned = _assigned(statement, result.values)
    except (_NotALiteralError, RecursionError):
        text = ast.unparse(statement)
        names = _changed(statement, result.values)
        for name in names:
            result.values.pop(name, None)
            result.unread[name] = text
        if not names:
            result.unread[f"line {statement.lineno}"] = text
    else:
        result.values |= assigned
        for name in assigned:
            result.unread.pop(name, None)


def _assigned(statement: ast.stmt, known: dict[str, Any]) -> dict[str, Any]:
    match statement:
        case ast.Expr(value=ast.Constant()):
            return {}  # a docstring
        case ast.Assign(targets=targets, value=node) if all(isinstance(target, ast.Name) for target in targets):
            return dict.fromkeys((name.id for target in targets for name in _names(target)), _value(node, known))
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as node):
            return {name: _value(node, known)}
    raise _NotALiteralError


def _changed(statement: ast.stmt, known: dict[str, Any]) -> set[str]:
    """Return the names that an assignment sets, or that any other statement (a loop, a method call) mentions."""
    if isinstance(statement, ast.Assign):
        return {name.id for target in statement.targets for name in _names(target)}
    if isinstance(statement, ast.AnnAssign):
        return {name.id for name in _names(statement.target)}
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return set()
    return {n.id for n in _names(statement) if n.id in known or not isinstance(n.ctx, ast.Load)}


def _names(node: ast.AST) -> list[ast.Name]:
    return [inner for inner in ast.walk(node) if isinstance(inner, ast.Name)]


def _value(node: ast.expr, known: dict[str, Any]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None):
            return _finite(node.value)
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.List() | ast.Tuple() | ast.Set():
            items = [_value(item, known) for item in node.elts]
            return tuple(items) if isinstance(node, ast.Tuple) else items
        case ast.Dict():
            return _dict(zip(node.keys, node.values, strict=True), known)
        case ast.Call(func=ast.Name(id="dict"), args=[]):
            return _dict(((k.arg if k.arg is None else ast.Constant(k.arg), k.value) for k in node.keywords), known)
        case ast.UnaryOp() | ast.BinOp():
            return _number(node, known)
    raise _NotALiteralError


def _dict(items: Iterable[tuple[ast.expr | None, ast.expr]], known: dict[str, Any]) -> dict[Any, Any]:
    """Build a dict from nodes of keys and values; a value without a key is a dict behind two stars."""
    result: dict[Any, Any] = {}
    for key, node in items:
        name, value = None if key is None else _value(key, known), _value(node, known)
        if key is None and isinstance(value, dict):
            result |= value
        elif isinstance(name, str | int | float):
            result[name] = value
        else:
            raise _NotALiteralError
    return result


def _number(node: ast.UnaryOp | ast.BinOp, known: dict[str, Any]) -> Any:
    parts = [node.operand] if isinstance(node, ast.UnaryOp) else [node.left, node.right]
    values = [_value(part, known) for part in parts]
    apply = _OPERATORS.get(type(node.op))
    if apply is None or any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        raise _NotALiteralError
    try:
        return _finite(apply(*values))
    except ArithmeticError:
        raise _NotALiteralError from None


def _finite(value: Any) -> Any:
    if isinstance(value, int | float) and not abs(value) < _MOST:
        raise _NotALiteralError
    return value


def _merge(onto: FormerSettings, later: FormerSettings) -> None:
    onto.values = _merged(onto.values, later.values)
    for name in later.values:
        onto.unread.pop(name, None)
    for name in later.unread:
        onto.values.pop(name, None)
    onto.unread |= later.unread


def _merged(old: Any, new: Any) -> Any:
    """Merge a later dict into an earlier one, unless it contains `_delete_`."""
    if not isinstance(old, dict) or not isinstance(new, dict) or new.get(DELETE):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}


def _without_marks(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_marks(inner) for key, inner in value.items() if key != DELETE}
