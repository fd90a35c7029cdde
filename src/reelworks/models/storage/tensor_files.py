"""Read tensors of .safetensors files one at a time, into memory of their own.

The library maps files, and whatever was read of a mapping counts as memory of the process until it is closed. So each file
is opened anew after some reading, and a file of any size takes the memory of its largest tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from reelworks.core.errors import UserError
from reelworks.data.checkpoint import safetensors_header
from reelworks.models.storage import weights

_DTYPES = {name: dtype for dtype, name in safetensors_header.DTYPES.items()}
_MAPPED_BYTES = 64_000_000  # read of a mapping before it is closed


class TensorFacts(NamedTuple):
    """The type and shape of a tensor in a file; no type for one that torch lacks, such as a number of 4 bits."""

    dtype: torch.dtype | None
    shape: tuple[int, ...]


class TensorFiles:
    """The tensors of some files together, by name; a context that closes them.

    Raises:
        UserError: A file is damaged, or no .safetensors file.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = [*files]
        self.facts: dict[str, TensorFacts] = {}
        self.metadata: dict[str, str] = {}  # of all headers together
        self._file_of: dict[str, Path] = {}
        self._open: tuple[Path, Any] | None = None
        self._stack, self._read_bytes = ExitStack(), 0
        for path in files:
            with weights.opened(path) as file:
                self.metadata |= file.metadata() or {}
                for name in file.keys():  # noqa: SIM118
                    tensor = file.get_slice(name)
                    self.facts[name] = TensorFacts(_DTYPES.get(tensor.get_dtype()), tuple(tensor.get_shape()))
                    self._file_of[name] = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def read(self, name: str) -> Tensor:
        """Return a tensor."""
        path = self._file_of[name]
        if self.facts[name].dtype is None:
            raise UserError(
                f"{path.name} stores {name} in a type that is not read here",
                code="weights-quantised",
                remedy="name the weights in bfloat16, float16 or float32",
            )
        if self._open is None or self._open[0] != path:
            self._close()
            self._open = path, self._stack.enter_context(weights.opened(path))
        value: Tensor = self._open[1].get_tensor(name).clone()
        self._read_bytes += value.nbytes
        if self._read_bytes > _MAPPED_BYTES:
            self._close()
        return value

    def _close(self) -> None:
        self._open, self._read_bytes = None, 0
        self._stack.close()
