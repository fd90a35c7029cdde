"""Configs that strangers spoiled: values of other kinds, empty ones and huge ones, at any place of a real one."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

JUNK: list[Any] = [
    *(
        -1,
        0,
        1,
        2**70,
        1e308,
        float("nan"),
        float("inf"),
        True,
        False,
        "",
        " ",
        "x",
        "1e-4",
        "nan",
        "ä\u202eö\n",
        "a\\b",
    ),
    *([], {}, [[]], [1, "x"], [{}], {"x": {"y": []}}, "x" * 5000, [0] * 300, "../../etc", "{text} {", "1,2,x", "0x0"),
]


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [place for key, inner in items for place in _places(inner, (*path, key))]


@st.composite
def spoiled(draw: st.DrawFn, config: dict[str, Any], junk: list[Any] = JUNK) -> dict[str, Any]:
    """A config with up to four values replaced, taken out or added."""
    found = copy.deepcopy(config)
    for _ in range(draw(st.integers(1, 4))):
        places = _places(found)
        if not places:
            break
        *path, last = draw(st.sampled_from(places))
        node: Any = found
        for key in path:
            node = node[key]
        kind = draw(st.sampled_from(("replace", "replace", "remove", "add")))
        if kind == "remove":
            del node[last]
        elif kind == "add" and isinstance(node, dict):
            node[draw(st.sampled_from(("mystery", "0", "a.b", "", "*")))] = copy.deepcopy(draw(st.sampled_from(junk)))
        else:
            node[last] = copy.deepcopy(draw(st.sampled_from(junk)))
    return found
