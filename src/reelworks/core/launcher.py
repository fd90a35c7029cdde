"""Read the environment variables by which a launcher tells a process its place among the others."""

from __future__ import annotations

import os

from reelworks.core.errors import UserError

_OF_ONE_PROCESS = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}  # the least values, too


def number(name: str) -> int:
    """Return the value of RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE or MASTER_PORT; without it, that of one process.

    Raises:
        UserError: It is not a whole number, or too small.
    """
    text, least = os.environ.get(name), _OF_ONE_PROCESS.get(name, 0)
    if not text and name in _OF_ONE_PROCESS:
        return least
    try:
        value = int(text or "")
    except ValueError:
        value = least - 1
    if not least <= value < 1 << 31:
        raise UserError(
            f"this environment variable is not a whole number from {least} on",
            code="launcher-variable-invalid",
            field=name,
            value=text,
            remedy="start with `reelworks train --nproc-per-node N`, with torchrun, or as in examples/launch; or unset it",
        )
    return value


def may_add_ranks() -> bool:
    """Return whether torchrun starts all processes again where machines are lost or join, perhaps more of them."""
    return os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"


def place() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks, by RANK and WORLD_SIZE.

    Raises:
        UserError: They are no such numbers, or the rank is not below the number of ranks.
    """
    rank, size = number("RANK"), number("WORLD_SIZE")
    if rank >= size:
        raise UserError(
            f"the rank is not below WORLD_SIZE, {size}",
            code="launcher-variable-invalid",
            field="RANK",
            value=rank,
            remedy="start with `reelworks train --nproc-per-node N`, with torchrun, or as in examples/launch; or unset both",
        )
    return rank, size
