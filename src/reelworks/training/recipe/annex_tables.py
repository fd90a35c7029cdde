"""Tables of a recipe that belong to annexes of other packages."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from pydantic import ValidationError, create_model

from reelworks.core import annexes, config, toml_none
from reelworks.core.config import Config
from reelworks.core.context_variables import setting
from reelworks.core.errors import UserError, nearest
from reelworks.core.log import logger

_may_be_missing: ContextVar[bool] = ContextVar("may_be_missing", default=False)


def may_be_missing(allowed: bool = True) -> AbstractContextManager[None]:
    """Keep tables of packages that are not installed as they are, for who only reads what a run was trained with."""
    return setting(_may_be_missing, allowed)


def require(tables: Mapping[str, Any]) -> None:
    """Refuse tables that were kept as they are."""
    parse({name: table for name, table in tables.items() if not isinstance(table, Config)})


def parse(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables below `annex` as the configs that their annexes declare.

    Raises:
        UserError: No installed annex has such a table, see `may_be_missing`, or one of its keys is wrong.
    """
    kinds: dict[str, Any] = {name: annex.table for name, annex in annexes.from_outside(tables).items() if annex.table}
    missing = {name: table for name, table in tables.items() if name not in kinds}
    others = [name for name in annexes.names() if name not in missing]
    for name, table in missing.items():
        if not _may_be_missing.get():
            raise UserError(
                "no installed package has an annex with this table",
                code="annex-unknown",
                field=f"annex.{name}",
                value=table,
                remedy="install the package that has it, or remove the table"
                + f"; {nearest(name, others)}" * bool(others),
            )
        _tell_of_missing(name)
    # As parts of a recipe, so that errors name their keys in full.
    asked: dict[str, Any] = {name: (annexes.use(name, kinds[name]), ...) for name in tables if name in kinds}
    given = {name: toml_none.from_toml(tables[name], kind) for name, (kind, _) in asked.items()}
    within: Any = create_model("within", __base__=Config, annex=(create_model("asked", __base__=Config, **asked), ...))
    try:
        found = within.model_validate({"annex": given})
    except ValidationError as refused:
        raise config.explain(refused, within) from None
    return {name: missing[name] if name in missing else getattr(found.annex, name) for name in tables}


@functools.cache
def _tell_of_missing(name: str) -> None:
    logger.warning("the run was trained with the annex %s, which is not installed: its table is not read", name)
