"""Roles of inputs and the dtypes that follow from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import torch


class Role(StrEnum):
    """Role of an input of a model; the role fixes its dtype.

    Times, geometry and numbers of words never fall below float32: bfloat16 turns timestep 999 into 1000 and 480 × 854
    into another size.
    """

    LATENT = "latent"
    TIME = "time"
    TEXT = "text"
    MASK = "mask"
    GEOMETRY = "geometry"
    CONDITION = "condition"
    WORDS = "words"

    @property
    def is_exact(self) -> bool:
        """Whether inputs of this role never fall below float32."""
        return self in (Role.TIME, Role.GEOMETRY, Role.WORDS)


@dataclass(frozen=True)
class Contract:
    """Dtypes of one component, declared before it runs."""

    storage: torch.dtype  # of the parameters in memory
    compute: torch.dtype  # of matrix products and of latent, text and condition inputs
    master: torch.dtype | None  # dtype in which the optimizer updates parameters; None if nothing is trained
    reduction: torch.dtype | None  # dtype in which gradients are summed over ranks; None if nothing is trained
    output: torch.dtype
    roles: Mapping[str, Role]  # role of every input by name
    # Dtypes whose range is known to be too small for what the component computes.
    overflows: frozenset[torch.dtype] = frozenset()
    # Format of frozen weights of products under a LoRA: the name of a dtype, or of a format of 8 or 4 bits that each
    # product widens; None if all weights have the storage dtype.
    base: str | None = None

    def computing_in(self, dtype: torch.dtype) -> Contract:
        """Return the contract of a component that is stored and computed in another dtype."""
        return dataclasses.replace(self, storage=dtype, compute=dtype)

    def dtype_of(self, role: Role) -> torch.dtype:
        """Return the dtype of inputs of a role inside the component."""
        if role.is_exact:
            return torch.float32
        return torch.bool if role is Role.MASK else self.compute


def name_of(dtype: torch.dtype) -> str:
    """Return the name of a dtype in recipes."""
    return str(dtype).removeprefix("torch.")
