"""What tests of the source read in it; each text is parsed once in a test process."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

parsed = cache(ast.parse)
_BLOCKS = ast.stmt | ast.ExceptHandler | ast.match_case


@cache
def statements(text: str) -> list[ast.stmt]:
    """Return all statements of a source, those within others too; many times as few as it has nodes."""
    return [node for node in _within(parsed(text)) if isinstance(node, ast.stmt)]


def _within(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _BLOCKS):
            yield child
            yield from _within(child)
