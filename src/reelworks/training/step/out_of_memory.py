"""Tell a lack of memory in training by bucket and batch size, with a snapshot of the GPU's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from reelworks.core import files
from reelworks.core.errors import UserError
from reelworks.core.log import logger
from reelworks.data.buckets.table import Bucket

_HISTORY = 100_000  # allocations whose stacks are kept
# Of host memory, torch says so in the message only; cuBLAS, cuDNN and oneDNN fail to allocate in their own words.
_WORDS = (
    "DefaultCPUAllocator",
    "out of memory",
    "alloc_failed",
    "cannot allocate memory",
    "can't allocate memory",
    "create a primitive",
)


def is_lack(error: BaseException) -> bool:
    """Whether an error is a failed allocation, on a device or of host memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word.lower() in str(error).lower() for word in _WORDS)


def record_history(device: torch.device) -> None:
    """Keep the Python stacks of allocations from now on, which snapshots then show; does nothing without a GPU."""
    if device.type == "cuda":
        torch.cuda.memory._record_memory_history(max_entries=_HISTORY)


def snapshot(device: torch.device, file: Path) -> Path | None:
    """Write what lies in a GPU's memory, for https://docs.pytorch.org/memory_viz; None without a GPU or on failure."""
    if device.type != "cuda":
        return None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with files.replacing(file) as temporary:
            torch.cuda.memory._dump_snapshot(str(temporary))  # type: ignore[no-untyped-call]
    except (OSError, RuntimeError) as error:
        logger.warning("no memory snapshot could be written (%s)", error)
        return None
    return file


@contextmanager
def naming_bucket(bucket: Bucket, device: torch.device, file: Path | None = None, *, what: str) -> Iterator[None]:
    """Turn a failed allocation into a `UserError` that names a bucket; a snapshot is written to `file`, if given."""
    try:
        yield
    except Exception as error:
        if not is_lack(error):
            raise
        reason = (str(error).splitlines() or ["no host memory is left"])[0][:200]
        written = None if file is None else snapshot(device, file)
        look = (
            "" if written is None else f"; {written} shows in https://docs.pytorch.org/memory_viz what the memory holds"
        )
        raise UserError(
            f"{what} does not fit into {'host' if device.type == 'cpu' else 'GPU'} memory ({reason})",
            code="out-of-memory",
            field="bucket.batch_size",
            value=f"{bucket.batch_size} for {bucket.name}",
            remedy=f"lower it, set model.gradient_checkpointing or parallel.offload = true, or remove that bucket{look}",
        ) from error
