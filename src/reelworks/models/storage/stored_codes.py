"""Tell from the header of a file of weights which codes it stores, so that a frozen base can keep them; torch-free."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reelworks.models.adapters.config import BaseStorage

_NF4 = ".quant_state.bitsandbytes__nf4"
_BASES: dict[str, BaseStorage] = {"F8_E4M3": "float8", "I8": "int8"}  # by dtype of most bytes


def base_of(source: str) -> BaseStorage | None:
    """Return the value of `lora.base` that keeps the codes of a file; None for plain numbers and for other sources.

    A damaged file is left to its reader, which tells what is wrong.
    """
    path = Path(source).expanduser()
    if not path.is_file():
        return None
    with path.open("rb") as file:
        begin = file.read(8)
        if begin.startswith(b"GGUF"):
            return "gguf"
        length = int.from_bytes(begin, "little")
        if path.suffix != ".safetensors" or length > path.stat().st_size:
            return None
        try:
            tensors = json.loads(file.read(length))
        except ValueError:
            return None
    if any(_NF4 in name for name in tensors):
        return "nf4"
    sizes = Counter[str]()
    for name, entry in tensors.items():
        if name != "__metadata__":
            begins, ends = entry["data_offsets"]
            sizes[entry["dtype"]] += ends - begins
    return next((base for dtype, base in _BASES.items() if 2 * sizes[dtype] > sizes.total()), None)
