"""Encode micro-batches, or load them from the store, the next one while the device trains.

On a GPU this work has a stream of its own. What is encoded does not depend on when: encoders draw nothing, and draws are
hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from reelworks.core.log import logger
from reelworks.data.loader.micro_batch import MicroBatch, MicroBatchRequest
from reelworks.training.encoding.batch_encoder import EncodedBatch


@dataclass
class EncodePrefetcher:
    """Encode the micro-batches of a stream step by step, the next one ahead if `is_ahead`, which is equal on all ranks.

    Attributes:
        request: Request of the micro-batch that was given out last, or is encoded to be given out; None before the first.

    Examples:
        >>> batches = EncodePrefetcher(iter([]), lambda batch: None, torch.device("cpu"), is_ahead=True)
        >>> list(batches.batches_of_step())
        []
    """

    _batches: Iterator[MicroBatch]
    _encode: Callable[[MicroBatch], EncodedBatch]
    _device: torch.device
    is_ahead: bool = field(kw_only=True)
    request: MicroBatchRequest | None = None
    _stream: Any = None
    _next: MicroBatch | None = None
    _encoded: EncodedBatch | None = None
    _error: Exception | None = None
    _has_warned: bool = False
    _waited_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.is_ahead and self._device.type == "cuda":
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def batches_of_step(self, mark: Callable[[str], None] = lambda doing: None) -> Iterator[EncodedBatch]:
        """Yield the micro-batches of the next step; `mark` is told what is done, between them too.

        Whoever asks for another one has launched the passes of the last, and waits for the device when there is none left.
        So the next one is encoded then, also at the end of the step.
        """
        ends_step = False
        while not ends_step:
            mark("waiting for clips")
            if (encoded := self._take(mark)) is None:
                return
            ends_step = encoded.batch.request.ends_step
            yield encoded
            del encoded
            if self.is_ahead:
                mark("preparing the next clips")
                self._prepare()

    def waited_seconds(self) -> float:
        """Return the time that was waited for micro-batches since the last call, also for those of later steps."""
        waited, self._waited_seconds = self._waited_seconds, 0.0
        return waited

    def _take(self, mark: Callable[[str], None]) -> EncodedBatch | None:
        """Return the next micro-batch, for use in the current stream; None after the last."""
        if self._error is not None:
            raise self._error
        batch, encoded = self._next or self._fetch(), self._encoded
        self._next = self._encoded = None
        if batch is None:
            return None
        mark("encoding clips")
        self.request = batch.request
        self._join(batch, encoded)
        return encoded or self._encode(batch)

    def _prepare(self) -> None:
        """Fetch and encode the next micro-batch; an error in fetching it is raised when it is taken."""
        with nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            try:
                self._next = self._fetch()
            except Exception as error:  # it concerns the next step: this one is finished first
                self._error = error
                return
            try:
                self._encoded = None if self._next is None else self._encode(self._next)
            except (
                Exception
            ) as error:  # such as a lack of memory: its step encodes it, and raises what is still wrong then
                self._encoded = None
                if not self._has_warned:
                    self._has_warned = True
                    logger.warning(f"clips cannot be encoded ahead ({error}); they are encoded in their step")

    def _fetch(self) -> MicroBatch | None:
        batch = next(self._batches, None)
        if batch is not None:
            self._waited_seconds += batch.stream.wait_seconds
        return batch

    def _join(self, batch: MicroBatch, encoded: EncodedBatch | None) -> None:
        """Let the current stream wait for the other one, and keep memory of that until this one has used it."""
        if self._stream is None:
            return
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        for tensor in (*(encoded.tensors() if encoded else ()), batch.frames, *batch.companions.values()):
            if tensor.is_cuda:
                tensor.record_stream(current)
