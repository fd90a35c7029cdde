"""Base class of all configs: frozen and strict, with unknown keys refused."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Base of all configs: plain values; runtime objects are arguments of the owning package's `build(...)`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
