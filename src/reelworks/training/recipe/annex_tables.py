"""Tables of a recipe that belong to annexes of other packages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError, create_model

from reelworks.core import annexes, config, toml_none
from reelworks.core.config import Config
from reelworks.core.errors import UserError, nearest


def parse(tables: Mapping[str, Any]) -> dict[str, Config]:
    """Return the tables below `annex` as the configs that their annexes declare.

    Raises:
        UserError: No installed annex has such a table, or one of its keys is wrong.
    """
    kinds: dict[str, Any] = {name: annex.table for name, annex in annexes.from_outside().items() if annex.table}
    for name in tables:
        if name not in kinds:
            raise UserError(
                "no installed package has an annex with this table",
                code="annex-unknown",
                field=f"annex.{name}",
                value=tables[name],
                remedy="install the package that has it, or remove the table"
                + f"; {nearest(name, kinds)}" * bool(kinds),
            )
    # As parts of a recipe, so that errors name their keys in full.
    asked: dict[str, Any] = {name: (annexes.use(name, kinds[name]), ...) for name in tables}
    given = {name: toml_none.from_toml(tables[name], kind) for name, (kind, _) in asked.items()}
    within: Any = create_model("within", __base__=Config, annex=(create_model("asked", __base__=Config, **asked), ...))
    try:
        found = within.model_validate({"annex": given})
    except ValidationError as refused:
        raise config.explain(refused, within) from None
    return {name: getattr(found.annex, name) for name in tables}
