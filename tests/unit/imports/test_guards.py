"""Words of the tables before a rule: at which values, and beside which other settings, it stops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.request import ImportRequest
from reelworks.annexes.imports.tables import GUARDS

ONE_OF_BOTH = {"b": [2], "c": [True]}


@pytest.mark.parametrize(
    ("guard", "told", "settings", "stops"),
    [
        # A switch is no number, and texts of a command line mean both.
        ("with", {"b": [1]}, {"b": True}, True),
        ("with", {"b": [1]}, {"b": 1}, False),
        ("with", {"b": [1]}, {"b": "1"}, False),
        ("with", {"c": [True]}, {"c": 1}, True),
        ("with", {"c": [True]}, {"c": "yes"}, False),
        # All that a rule needs has to be there, and one of those that replace it is enough.
        ("with", ONE_OF_BOTH, {"b": 2}, True),
        ("with", ONE_OF_BOTH, {"b": 2, "c": True}, False),
        ("without", ONE_OF_BOTH, {"b": 2}, True),
        ("without", ONE_OF_BOTH, {"b": 1, "c": False}, False),
        # The least number is not below itself.
        ("below", 2, {"a": 1}, True),
        ("below", 2, {"a": 2}, False),
    ],
)
def test_a_rule_stops_where_its_table_says(guard: str, told: Any, settings: dict[str, Any], stops: bool) -> None:
    draft = ImportDraft(FormerSettings(settings), ImportRequest(files=(Path("config"),), output=Path("made.toml")))
    draft.begin("a")
    assert (GUARDS[guard]({"why": told}, settings.get("a"), draft) is not None) == stops
