"""Base classes of all configs: frozen and strict, with unknown keys refused."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError, WrapValidator

from reelworks.core import config_errors, words


def open_set(registered: Container[str]) -> WrapValidator:
    """Let a field of some names, which its `Literal` lists, take those that a program registers, too."""
    return WrapValidator(lambda name, check: name if isinstance(name, str) and name in registered else check(name))


class Config(BaseModel):
    """Base of all configs: plain values; runtime objects are arguments of the owning package's `build(...)`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


if TYPE_CHECKING:
    _Telling = Config
else:

    class _Calls(type(Config)):
        # A config inside another one is not made by a call, so that the error of a recipe names the whole path.
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().__call__(*args, **kwargs)
            except ValidationError as refused:
                error = config_errors.explain(refused, cls)
            words.tell(error)
            raise error

    class _Telling(Config, metaclass=_Calls):
        pass


class PublicConfig(_Telling):
    """Base of the configs that users of the library make: wrong arguments are a `UserError` with the argument's name."""
