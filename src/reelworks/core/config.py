"""The base of every config: frozen, strict, unknown keys refused."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Values only; runtime objects go into `build(...)` functions of the owning package."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
