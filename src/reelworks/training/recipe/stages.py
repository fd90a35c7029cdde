"""Stages of a training: parts of one run that follow each other and differ in some keys of the recipe."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from reelworks.core import toml_none, units
from reelworks.core.config import Config, Private
from reelworks.core.errors import UserError
from reelworks.data.buckets.config import as_table
from reelworks.data.catalog.config import DatasetConfig, Source, same_name

Values = dict[str, Any]
_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]*"
LISTS = ("dataset", "bucket")  # of tables
_TABLES = ("buckets", "cost", "data", "encode", "objective", "samples", "train")
KEYS = (*LISTS, *_TABLES)  # that a stage may change
ENDS = {"steps": "max_steps", "epochs": "max_epochs", "clips": "max_clips"}


class StageConfig(Config):
    """`[[stage]]`: a part of the run, with keys that differ from the recipe's: `[stage.train]`, `[[stage.bucket]]`, ...

    Attributes:
        name: Name of the stage, such as low-resolution.
        steps: Optimizer steps after which it ends.
        epochs: Passes over its data after which it ends.
        clips: Clips trained, each use as one, after which it ends.
        optimizer: Whether the optimizer's state goes on from the stage before, or begins anew.
        ema: Whether the average goes on, or is copied from the weights; that of schedule-free AdamW is part of the
            optimizer's state, and where this begins anew, the weights are that average.
        dataset: In place of the recipe's datasets.
        bucket: In place of the recipe's entries.
        buckets: Keys of `[buckets]`.
        cost: Keys of `[cost]`.
        data: Keys of `[data]`.
        encode: Keys of `[encode]`.
        objective: Keys of `[objective]`.
        samples: Keys of `[samples]`.
        train: Keys of `[train]` but threads; warmup_steps and the course of the learning rate count from the stage's
            start, and all others, such as skip_steps, the steps of the run.
    """

    name: Private[str] = Field(json_schema_extra={"pattern": f"^{_NAME}$"})
    steps: int | None = Field(default=None, ge=1)
    epochs: int | None = Field(default=None, ge=1)
    clips: int | None = Field(default=None, ge=1)
    optimizer: Literal["keep", "reset"] = "keep"
    ema: Literal["keep", "reset"] = "keep"
    dataset: Private[list[Values] | None] = None
    bucket: Private[list[Values] | None] = None
    buckets: Private[Values | None] = None
    cost: Private[Values | None] = None
    data: Private[Values | None] = None
    encode: Private[Values | None] = None
    objective: Private[Values | None] = None
    samples: Private[Values | None] = None
    train: Private[Values | None] = None

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not re.fullmatch(_NAME, name):
            plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")
            raise UserError(
                "a stage's name has letters, digits, - and _ only, and begins with a letter or digit",
                code="stage-name-invalid",
                field="stage.name",
                value=name,
                remedy=f'write name = "{plain or "first"}"',
            )
        return name

    @model_validator(mode="after")
    def _check_train(self) -> StageConfig:
        for key, of_train in ENDS.items():
            if self.train and of_train in self.train:
                raise UserError(
                    "a stage says its end itself",
                    code="stage-end-invalid",
                    field=f"stage.train.{of_train}",
                    value=self.train[of_train],
                    remedy=f"write {key} in [[stage]] {self.name}",
                )
        if self.train and "threads" in self.train:
            raise UserError(
                "it is set once, at the start of a training, and holds for all stages",
                code="not-of-a-stage",
                field="stage.train.threads",
                value=self.train["threads"],
                remedy="write it in [train]",
            )
        return self

    @property
    def ends(self) -> dict[str, int]:
        """The keys of `[train]` that say when it ends, and their values."""
        named = {of_train: getattr(self, key) for key, of_train in ENDS.items()}
        return {key: end for key, end in named.items() if end is not None}

    @property
    def end_text(self) -> str:
        """The end, for people."""
        ends = [units.plural(end, key[:-1]) for key in ENDS if (end := getattr(self, key)) is not None]
        return " or ".join(ends) or "train.max_steps of the run"


class StageList(Config):
    """The stages of a recipe."""

    stage: list[StageConfig]


def require(stages: Sequence[StageConfig], train: Mapping[str, Any]) -> None:
    """Raise unless names differ, and every stage says when it ends; `train` is the recipe's own table."""
    names = [stage.name for stage in stages]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                "two stages have this name",
                code="stage-name-taken",
                field="stage.name",
                value=name,
                remedy="rename one",
            )
    for key in ("optimizer", "ema"):
        if getattr(stages[0], key) == "reset":
            raise UserError(
                "no stage comes before the first one, whose state could go on",
                code="stage-reset-invalid",
                field=f"stage.{key}",
                value="reset",
                remedy=f"leave it out of [[stage]] {stages[0].name}",
            )
    for stage in stages if train.get("max_steps") in (None, toml_none.WORD) else stages[:-1]:
        if not stage.ends:
            last = ", or train.max_steps for the whole run" if stage is stages[-1] else ""
            raise UserError(
                "it does not say when it ends",
                code="stage-end-missing",
                field="stage.steps",
                value=stage.name,
                remedy=f"give it steps, epochs or clips{last}",
            )
    for key in ("max_epochs", "max_clips"):
        if train.get(key) not in (None, toml_none.WORD):
            raise UserError(
                "with stages it is not clear what it counts",
                code="stage-end-invalid",
                field=f"train.{key}",
                value=train[key],
                remedy="give the stages their ends; train.max_steps may limit the whole run",
            )


@contextmanager
def naming(stage: StageConfig) -> Iterator[None]:
    """Tell a mistake in the recipe of a stage with the stage's name, and with the place of a key that it has itself."""
    try:
        yield
    except UserError as error:
        table, _, key = (error.field or "").partition(".")
        own = getattr(stage, table, None)
        # A table of the stage may lack the key, which is then the recipe's.
        is_own = own is not None and (table in LISTS or not key or key.split(".")[0] in as_table(own))
        field = f"stage.{error.field}" if is_own else error.field
        error.reword(field=field, problem=f"in stage {stage.name}: {error.problem}")
        raise


def require_names(stages: Sequence[StageConfig], datasets: Sequence[Sequence[DatasetConfig]]) -> None:
    """Refuse a name that two stages give to other clips: their catalog holds one of both, and would be made anew each time."""
    known: dict[tuple[str, str], Source] = {}
    for stage, own in zip(stages, datasets, strict=True):
        with naming(stage):
            for dataset in own:
                folders = {kind: Source.from_path(folder, kind) for kind, folder in dataset.companions.items()}
                for kind, source in {"": dataset.place, **folders}.items():
                    both = known.setdefault((dataset.dataset_name, kind), source), source
                    if len({(each.address, each.list_file, each.cut) for each in both}) > 1:
                        raise same_name(dataset.dataset_name, both)


def hides(stage: Values, table: str, key: str = "", *_: str) -> bool:
    """Return whether a stage, as it is written, has a key of a recipe's table itself."""
    own = stage.get(table)
    return own is not None and (table in LISTS or (table in _TABLES and key in as_table(own)))


def of_stage(key: str, name: str) -> str:
    """Return a recipe's key as `--set` changes it in the stage of that name, if there is one, whatever that writes itself."""
    return f"stage.{name}.{key}" if name else key


_OTHER_ENTRIES = ("entries", "opensora", "probability", "opensora_drop_exact_length")


def merged(values: Values, stage: StageConfig) -> Values:
    """Return the values of a recipe as a stage has them; its end counts from its own start."""
    result = {key: value for key, value in values.items() if key != "stage"}
    if stage.bucket is not None and isinstance(buckets := as_table(result.get("buckets")), dict):
        # The recipe's entries may be given in other ways, with settings of their own.
        result["buckets"] = {key: value for key, value in buckets.items() if key not in _OTHER_ENTRIES}
    if stage.buckets and "opensora" in stage.buckets:
        result.pop("bucket", None)
    result |= {key: value for key in LISTS if (value := getattr(stage, key)) is not None}
    for key in _TABLES:
        own, table = getattr(stage, key), as_table(result.get(key, {}))
        if own is not None and isinstance(table, dict):
            result[key] = {**table, **own}
    if stage.ends and isinstance(train := result.get("train", {}), dict):
        kept = {key: value for key, value in train.items() if key not in ENDS.values()}
        result["train"] = {**kept, **stage.ends}
    return result


def difference(first: Values, other: Values, stage: StageConfig) -> StageConfig:
    """Return a stage with the keys in which its resolved recipe differs from that of the first stage, both as values."""
    update: dict[str, Any] = {key: other[key] if other[key] != first[key] else None for key in LISTS}
    for key in _TABLES:
        before, after = ({k: v for k, v in values[key].items() if k not in ENDS.values()} for values in (first, other))
        unset = dict.fromkeys(before.keys() - after.keys(), toml_none.WORD)
        update[key] = unset | {k: v for k, v in after.items() if k not in before or before[k] != v} or None
    return stage.model_copy(update=update)
