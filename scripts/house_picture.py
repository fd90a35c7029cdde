"""docs/images/house.svg: the wings of the program on their floors, with their rooms, from the folders and `tests/test_layers.py`.

`generate_reference.py` writes it.
"""

from __future__ import annotations

import ast
import html
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_SOURCE = ROOT / "src" / "reelworks"
_WIDTH, _LINE, _GAP = 960, 18, 12
_SAID = {
    "core": "texts, files, errors, draws",
    "data": "what any loop needs",
    "models": "networks, adapters, objectives",
    "training": "recipe, steps, observers, plans",
    "inference": "clips and figures of a trained model",
    "reports": "pages and sheets",
    "quickstart": "a first recipe",
    "demo": "the whole way",
    "testing": "for tests of one's own",
    "annexes": "nothing imports them",
    "commands": "parse, call, print",
}


def picture() -> str:
    """Return the picture as SVG, the ground floor at the bottom."""
    top, parts = 10, []
    for wings in reversed(_floors()):
        height = max(len(_lines(wing)) for wing in wings) * _LINE + 2 * _GAP
        width = (_WIDTH - _GAP * (len(wings) + 1)) / len(wings)
        for place, wing in enumerate(wings):
            left = _GAP + place * (width + _GAP)
            parts.append(f'<rect x="{left:.0f}" y="{top}" width="{width:.0f}" height="{height}" rx="6"/>')
            for number, line in enumerate(_lines(wing)):
                kind = ' class="name"' if number == 0 else ""
                at = top + _GAP + (number + 1) * _LINE - 5
                parts.append(f'<text x="{left + 10:.0f}" y="{at}"{kind}>{html.escape(line)}</text>')
        top += height + _GAP
    style = "rect{fill:#f6f6f2;stroke:#999} text{font:12px sans-serif;fill:#222} .name{font-weight:bold;font-size:14px}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" role="img">'
    return "\n".join(
        [head, "<title>Wings of Reelworks on their floors</title>", f"<style>{style}</style>", *parts, "</svg>\n"]
    )


def _floors() -> list[tuple[str, ...]]:
    tree = ast.parse((ROOT / "tests" / "test_layers.py").read_text(encoding="utf-8"))
    value = next(n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "FLOORS")
    floors: list[tuple[str, ...]] = list(ast.literal_eval(value))
    return floors


def _lines(wing: str) -> list[str]:
    """Return the name of a wing, what it is for, and its rooms, a few to a line."""
    rooms = sorted(init.parent.name for init in (_SOURCE / wing).glob("*/__init__.py"))
    step = 3 if wing in ("annexes", "core") else 7
    return [
        wing,
        *filter(None, [_SAID.get(wing)]),
        *(", ".join(rooms[i : i + step]) for i in range(0, len(rooms), step)),
    ]
