"""Settings of a dataset config, which hold for one folder, for those of one dataset, or for all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reelworks.annexes.imports.draft import FormerSettings, ImportDraft
from reelworks.annexes.imports.rules import Fate, Outcome, Rule
from reelworks.annexes.imports.trainer import apply_rule

_WORST = (Fate.UNREAD, Fate.TO_FILL_IN, Fate.NOT_POSSIBLE, Fate.TAKEN, Fate.NO_MEANING, Fate.DEFAULT)


class Found(NamedTuple):
    """The value of a parameter, and the setting that it comes from."""

    key: str
    value: Any
    is_default: bool = False


@dataclass(frozen=True)
class FormerDataset:
    """A folder or list that becomes one [[dataset]], with the places of its settings, the most exact first.

    Attributes:
        places: Beginnings of its settings' names: "datasets.0.subsets.1.", "datasets.0.", "general.", "".
        also: Other names of parameters on the command line.
        own: Values that come from the folder's name.
        group: Number of the trainer's dataset that it belongs to, whose clips share batches.
    """

    places: tuple[str, ...]
    also: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, Found] = field(default_factory=dict)
    group: int = 0

    def find(self, settings: FormerSettings, name: str) -> Found | None:
        """Return the value that holds for a parameter; None if it is set nowhere."""
        if name in self.own:
            return self.own[name]
        for place in self.places:
            for key in (f"{place}{name}", *([self.also[name]] if not place and name in self.also else [])):
                if (value := settings.get(key)) is not None:
                    return Found(key, value)
        return None

    def get(self, settings: FormerSettings, name: str, default: Any) -> Any:
        """Return the value that holds for a parameter, or the default also if it is of another kind."""
        found = self.find(settings, name)
        if found is None or (default is not None and not isinstance(found.value, _kinds(default))):
            return default
        return default if isinstance(found.value, float) and not math.isfinite(found.value) else found.value


def _kinds(default: Any) -> tuple[type, ...]:
    if isinstance(default, bool):
        return (bool,)
    return (int, float) if isinstance(default, int | float) else (type(default),)


class OutcomesByKey:
    """Outcomes of settings, of which one may hold for several datasets."""

    def __init__(self) -> None:
        self._outcomes: dict[str, dict[Outcome, None]] = {}

    def add(self, key: str, outcome: Outcome) -> None:
        """Add the outcome of a setting for one dataset."""
        self._outcomes.setdefault(key, {})[outcome] = None

    def rules(self, names: Iterable[str], settings: FormerSettings) -> dict[str, Rule]:
        """Return a rule for each setting that tells its outcome; settings that others replace have no meaning."""
        rules = dict[str, Rule]()
        for key, outcomes in self._outcomes.items():
            worst = min((fate for fate, _ in outcomes), key=_WORST.index)
            rules[key] = _constant((worst, "; ".join(dict.fromkeys(remark for _, remark in outcomes))))
        known = set(names)
        for key in settings.values:
            name = key.rpartition(".")[2]
            if key not in rules and name in known and (key.startswith(("general.", "datasets.")) or key == name):
                rules[key] = _constant((Fate.NO_MEANING, "each dataset has its own value"))
        return rules


def _constant(outcome: Outcome) -> Rule:
    return lambda value, draft: outcome


def convert(
    draft: ImportDraft,
    datasets: Sequence[FormerDataset],
    rules: Mapping[str, Rule],
    defaults: Mapping[str, Any],
    outcomes: OutcomesByKey,
) -> None:
    """Apply rules of parameters to each dataset; in their targets, `*` is the number of the [[dataset]]."""
    for number, dataset in enumerate(datasets):
        for name, rule in rules.items():
            found = dataset.find(draft.settings, name)
            if found is None and name in defaults:
                found = Found(name, defaults[name], is_default=True)
            if found is None:
                continue
            draft.begin(found.key, is_default=found.is_default)
            draft.numbers = (number,)
            outcome = apply_rule(rule, found.value, draft)
            if not found.is_default:
                outcomes.add(found.key, outcome)
