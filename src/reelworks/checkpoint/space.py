"""Whether a checkpoint will fit, asked before a byte of it is written."""

from __future__ import annotations

import errno
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from reelworks.checkpoint import mount, ranks
from reelworks.core.quantities import told_bytes

# torch.save wraps each value in an archive of 1 to 1.5 KB, and the metadata describes each.
_RECORD_BYTES = 2048


def local_bytes(state: Any) -> int:
    """Estimate what this rank's share of a state takes on disk; the sum over ranks is the checkpoint.

    Replicas are written once: plain values count on rank 0, a DTensor's shard by its share among the
    copies of it.
    """
    if isinstance(state, Mapping):
        return sum(local_bytes(value) for value in state.values())
    if isinstance(state, list | tuple):
        return sum(local_bytes(value) for value in state)
    if isinstance(state, DTensor):
        local = state.to_local()
        copies = [state.device_mesh.size(i) for i, p in enumerate(state.placements) if p.is_replicate()]
        return local.numel() * local.element_size() // math.prod(copies) + _RECORD_BYTES
    if ranks.rank():
        return 0
    return _RECORD_BYTES + (state.numel() * state.element_size() if isinstance(state, Tensor) else 0)


def require(folder: Path, need_bytes: int, what: str = "a checkpoint") -> None:
    """Check that a folder's disk has room for something, with a margin.

    Raises:
        OSError: ENOSPC, as the disk itself would say later.
    """
    need_bytes, free_bytes = int(need_bytes * mount.MARGIN), shutil.disk_usage(folder).free
    if free_bytes < need_bytes:
        raise OSError(
            errno.ENOSPC, f"{what} needs {told_bytes(need_bytes)}, {told_bytes(free_bytes)} are free"
        )
