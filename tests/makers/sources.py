"""What tests of the source read in it; each text is parsed once in a test process."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache

_BLOCKS = ast.stmt | ast.ExceptHandler | ast.match_case


@cache
def parsed(text: str) -> ast.Module:
    """Return its tree; no collection of garbage looks through those of all files, which takes half a second."""
    tree = ast.parse(text)
    gc.freeze()
    return tree


@cache
def statements(text: str) -> list[ast.stmt]:
    """Return all statements of a source, those within others too; many times as few as it has nodes."""
    return [node for node in _within(parsed(text)) if isinstance(node, ast.stmt)]


def _within(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _BLOCKS):
            yield child
            yield from _within(child)
