"""Encode the next micro-batch, or load it from the store, while the device trains.

The trainer asks for it when it has launched the passes of a micro-batch and before it waits for the device. On a GPU the
work has a stream of its own. What is prepared does not depend on when: encoders draw nothing, and draws are hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from reelworks.data.micro_batch import MicroBatch
from reelworks.train.batch_inputs import EncodedBatch


class EncodePrefetcher(Iterator[MicroBatch]):
    """Iterate over micro-batches, of which the next one may be prepared; `prepare` is None if none is.

    Examples:
        >>> batches = EncodePrefetcher(iter([]), None, torch.device("cpu"))
        >>> batches.prepare_next()
        >>> list(batches)
        []
    """

    def __init__(
        self,
        batches: Iterator[MicroBatch],
        prepare: Callable[[MicroBatch], EncodedBatch] | None,
        device: torch.device,
    ) -> None:
        self._batches, self._prepare, self._device = batches, prepare, device
        self._stream: Any = None
        if prepare is not None and device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._next: MicroBatch | None = None
        self._encoded: tuple[MicroBatch, EncodedBatch] | None = None
        self._error: Exception | None = None
        self._waited_seconds = 0.0

    @property
    def is_on(self) -> bool:
        """Whether micro-batches are prepared; equal on all ranks."""
        return self._prepare is not None

    def __next__(self) -> MicroBatch:
        if self._error is not None:
            raise self._error
        if self._next is None:
            return self._fetch()
        batch, self._next = self._next, None
        return batch

    def prepare_next(self) -> None:
        """Fetch and prepare the next micro-batch; an error in fetching it is raised when it is asked for."""
        if self._prepare is None or self._next is not None or self._error is not None:
            return
        with self._beside():
            try:
                self._next = self._fetch()
            except StopIteration:
                return
            except Exception as error:  # it concerns the next step: this one is finished first
                self._error = error
                return
            try:
                self._encoded = self._next, self._prepare(self._next)
            except Exception:  # such as a lack of memory: its step encodes it, and raises what is still wrong then
                self._encoded = None

    def _fetch(self) -> MicroBatch:
        batch = next(self._batches)
        self._waited_seconds += batch.stream.wait_seconds
        return batch

    def waited_seconds(self) -> float:
        """Return the time that was waited for micro-batches since the last call, also for those of later steps."""
        waited, self._waited_seconds = self._waited_seconds, 0.0
        return waited

    def take(self, batch: MicroBatch) -> EncodedBatch | None:
        """Return what was prepared of a micro-batch, for use in the current stream; None if nothing was."""
        self._join(batch)
        if self._encoded is None or self._encoded[0] is not batch:
            return None
        (_, encoded), self._encoded = self._encoded, None
        return encoded

    def _beside(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def _join(self, batch: MicroBatch) -> None:
        """Let the current stream wait for the other one, and keep memory of that until this one has used it."""
        if self._stream is None:
            return
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        encoded = [] if self._encoded is None else self._encoded[1].tensors()
        for tensor in (*encoded, batch.frames, *batch.companions.values()):
            if tensor.is_cuda:
                tensor.record_stream(current)
