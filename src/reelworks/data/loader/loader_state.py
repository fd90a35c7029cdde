"""The state of a loader as plain values, and the refusal of a state that the data no longer fit."""

from __future__ import annotations

import base64
import binascii
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar, get_type_hints

from reelworks.core.errors import UserError, first_few
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.loader.dataset import Dataset
from reelworks.data.schedule.cursor import Aliases, Cursor, Excluded
from reelworks.data.schedule.plan import PlanSpec

FORMAT = 2
_Clips = TypeVar("_Clips", Excluded, Aliases)


@dataclass(frozen=True)
class LoaderState:
    """State of a loader, the same on every rank.

    Attributes:
        cursor: Position in the data.
        micro_batches_per_step, same_bucket_run: Shape of a step, which a loader without a wish of its own takes over.
        excluded: Clips that earlier segments of the epoch consumed.
        aliases: Clips that were first seen under another uid.
    """

    cursor: Cursor
    micro_batches_per_step: int
    same_bucket_run: int
    excluded: Excluded
    aliases: Aliases

    def to_plain(self) -> dict[str, Any]:
        """Return texts and numbers in nested dicts, which any serializer keeps."""
        return {
            "format": FORMAT,
            "cursor": asdict(self.cursor),
            "micro_batches_per_step": self.micro_batches_per_step,
            "same_bucket_run": self.same_bucket_run,
            "excluded": base64.b64encode(self.excluded.to_bytes()).decode(),
            "aliases": base64.b64encode(self.aliases.to_bytes()).decode(),
        }

    @classmethod
    def from_plain(cls, state: object) -> LoaderState:
        """Read the output of `to_plain`, every value of which is checked.

        Raises:
            UserError: It is no state of a loader, of another format, or damaged.
        """
        values = _of_keys(state, {"format": int}, "it", others=True)
        if values["format"] != FORMAT:
            raise _no_state(f"it has format {values['format']}, and this version of Reelworks reads {FORMAT}")
        kinds = {f.name: kind for f in fields(cls) if (kind := get_type_hints(cls)[f.name]) is int}
        texts = {"excluded": str, "aliases": str}
        values = _of_keys(state, {"format": int, "cursor": Mapping, **kinds, **texts}, "it")
        cursor = Cursor(**_of_keys(values["cursor"], get_type_hints(Cursor), "its cursor"))
        per_step, run = values["micro_batches_per_step"], values["same_bucket_run"]
        if not run or per_step % run or not per_step:
            raise _no_state(f"its same_bucket_run, {run}, does not divide its micro_batches_per_step, {per_step}")
        excluded = _clips(Excluded, values["excluded"], "excluded")
        return cls(cursor, per_step, run, excluded, _clips(Aliases, values["aliases"], "aliases"))


def _of_keys(state: object, kinds: Mapping[str, Any], what: str, *, others: bool = False) -> dict[str, Any]:
    """Return the values of a mapping that has exactly some keys, or with `others` at least these."""
    if not isinstance(state, Mapping):
        raise _no_state(f"{what} is of type {type(state).__name__}, not a dict")
    missing = [key for key in kinds if key not in state]
    more = [] if others else [str(key) for key in state if key not in kinds]
    if missing or more:
        lists = {"lacks": missing, "has the unknown": more}
        raise _no_state(f"{what} {' and '.join(f'{verb} {first_few(keys)}' for verb, keys in lists.items() if keys)}")
    for key, kind in kinds.items():
        value = state[key]
        if not isinstance(value, kind) or isinstance(value, bool) or (kind is int and value < 0):
            raise _no_state(f"{key} is {value!r:.100}, not {'a number from 0 on' if kind is int else kind.__name__}")
    return {key: state[key] for key in kinds}


def _clips(kind: type[_Clips], text: str, key: str) -> _Clips:
    try:
        return kind.from_bytes(base64.b64decode(text, validate=True))
    except (binascii.Error, zipfile.BadZipFile, ValueError, KeyError, OSError, EOFError) as error:
        raise _no_state(f"{key} cannot be read: {error}") from error


def _no_state(problem: str) -> UserError:
    return UserError(
        f"this is not a state that Loader.state_dict() returned: {problem}",
        code="not-a-loader-state",
        field="state",
        remedy="load what state_dict() of a Loader of this version returned, as it was",
    )


def data_changed(dataset: Dataset, spec: PlanSpec, cursor: Cursor, lost: UserError | None) -> UserError:
    """Return the error for a state that other data are given to, with a way back that is known to work.

    Args:
        dataset: The data as they are.
        spec: Everything else that determines a plan, as it is.
        cursor: Position of the state.
        lost: Why the record of the clips that were trained cannot be read; None if the loader has no records.
    """
    catalog_differs = cursor.catalog != dataset.digest
    ways = []
    if catalog_differs and _digest_then(dataset, cursor) == cursor.catalog:
        ways.append(
            "open the catalog as it was, with Catalog.open"
            f"({str(dataset.catalog.path)!r}, version={cursor.catalog_version})"
        )
    if cursor.spec != spec.digest():
        ways.append("give the buckets, settings of the dataset, seed and micro_batches_per_step of the state")
    if catalog_differs and len(ways) == (cursor.spec != spec.digest()):
        ways = ["the catalog of the state is no longer there: begin with a new Loader, without the state"]
    what = {
        (True, False): "the catalog",
        (False, True): "the buckets, the settings of the dataset, the seed or micro_batches_per_step",
    }.get((catalog_differs, cursor.spec != spec.digest()), "the catalog and the settings")
    why = "the loader has none (record_to)" if lost is None else lost.problem
    return UserError(
        f"{what} changed since the state was taken in epoch {cursor.epoch}, and the record of the clips that were trained "
        f"is needed to go on with what is left: {why}",
        code="data-changed" if lost is None else "record-missing",
        field="record_to",
        remedy=f"{' and '.join(ways)}; data may change where record_to was given from the first step on",
    )


def _digest_then(dataset: Dataset, cursor: Cursor) -> str | None:
    """Return the digest of a dataset on its catalog at the version of a cursor; None if that cannot be read."""
    with suppress(UserError, OSError):
        catalog = Catalog.open(dataset.catalog.path, version=cursor.catalog_version)
        return Dataset(catalog, dataset.table, dataset.spec).digest
    return None
