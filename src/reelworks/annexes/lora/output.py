"""Rewrite files of adapters: layers are read one after the other, changed, compared, and written, whole or not at all.

The tools differ in what they do with a layer; opening, progress, results, header and writing are theirs together.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import IO, NamedTuple, Protocol

import torch
from torch import Tensor

from reelworks.annexes.lora.adapter_file import AdapterFile
from reelworks.annexes.lora.contents import StoredLayer
from reelworks.annexes.lora.results import LayerResult, LoraResult, ratio
from reelworks.core import files, log
from reelworks.core.errors import UserError
from reelworks.data.checkpoint import safetensors_header
from reelworks.data.checkpoint.safetensors_header import TensorRange
from reelworks.models.adapters import files as adapter_files
from reelworks.models.adapters import text_encoders
from reelworks.models.adapters.adapter_types.adapter_type import AdapterType
from reelworks.models.adapters.adapter_types.registry import LORA
from reelworks.models.adapters.conventions import Convention
from reelworks.models.adapters.key_mapping import METADATA
from reelworks.models.adapters.low_rank import LowRank
from reelworks.models.export import export, safetensors_file
from reelworks.models.export.config import Dtype

_FIELD = "output"
# Fields of a header that are true of one file only.
_OF_THE_FILE = ("sshs_model_hash", "sshs_legacy_hash", "modelspec.hash_sha256", METADATA, "format")


class RewriteRequest(Protocol):
    """A request for a file of an adapter."""

    @property
    def output(self) -> Path:
        """The file to write."""

    @property
    def overwrite(self) -> bool:
        """Whether it may replace one that is there."""

    @property
    def dtype(self) -> Dtype | None:
        """Data type of its numbers; None for that of each layer in the input."""


class WrittenLayer(NamedTuple):
    """The update of a layer in a file."""

    type: AdapterType
    rank: int | None
    dora: bool = False


class NewAdapterFile:
    """A file that is being written; its tensors wait in an unnamed file on the same disk, since a header comes first.

    Attributes:
        layers: Layers that were written, by what the names of their tensors begin with.
        results: How far they are from their exact updates, by layer of the input.
    """

    def __init__(self, target: Path, dtype: torch.dtype | None, stack: ExitStack) -> None:
        self.target, self._dtype, self._stack = target, dtype, stack
        self._entries: dict[str, tuple[TensorRange, int]] = {}
        self.layers: dict[str, WrittenLayer] = {}
        self.results: list[LayerResult] = []

    def stage(self, doing: str, count: int) -> AbstractContextManager[None]:
        """Tell in the block how many of so many layers have a result."""
        return log.stage(doing, lambda: f"{len(self.results)} of {count} layers")

    def dtype_of(self, own: torch.dtype) -> torch.dtype:
        """Return the type that numbers are written in: the one asked for, or else the layer's own."""
        return self._dtype or own

    @cached_property
    def _spool(self) -> IO[bytes]:
        """An unnamed file, made for the first tensor, so that a mistake leaves no folder behind."""
        self.target.parent.mkdir(parents=True, exist_ok=True)
        spool = tempfile.TemporaryFile(dir=self.target.parent)  # noqa: SIM115
        self._stack.callback(_close, spool)
        return spool

    def add(self, name: str, value: Tensor, dtype: torch.dtype) -> None:
        """Add a tensor."""
        self.add_as_stored(name, export.cast(name, value, dtype))

    def add_as_stored(self, name: str, value: Tensor) -> None:
        """Add a tensor of any type as it is."""
        with files.writing(_FIELD, self.target):
            self._entries[name] = TensorRange(name, value.dtype, tuple(value.shape)), self._spool.tell()
            self._spool.write(safetensors_header.raw(value).numpy().data)

    def add_layer(self, stem: str, named: Mapping[str, Tensor], layer: WrittenLayer, dtype: torch.dtype) -> None:
        """Add the tensors of a layer by their names in the file; alphas, which are counts, stay in float32."""
        for name, value in named.items():
            self.add(name, value, torch.float32 if name.endswith(".alpha") else dtype)
        self.layers[stem] = layer

    def add_product(
        self, stem: str, product: LowRank, dtype: torch.dtype, convention: Convention, kernel: Sequence[int] = ()
    ) -> LowRank:
        """Add the update of a layer as a LoRA of scale 1, and return it as it is written."""
        product = product.balanced() if dtype == torch.float16 else product
        kinds = {kind: export.cast(f"{stem}.{kind}", value, dtype) for kind, value in product._asdict().items()}
        shaped = LORA.with_kernel(kinds, kernel)
        self.add_layer(stem, LORA.named(stem, shaped, convention), WrittenLayer(LORA, product.rank), dtype)
        return LowRank(kinds["B"].float(), kinds["A"].float())

    def add_update(
        self, file: AdapterFile, layer: StoredLayer, product: LowRank, *, norm: float, missing: float = 0.0
    ) -> None:
        """Add the update of a layer of a file likewise, and note how far it is from the exact one.

        `norm` is that of the exact update, and `missing` that of what the product lacks of it.
        """
        stem = file.stem_of(layer)
        written = self.add_product(stem, product, self.dtype_of(layer.dtype), file.names, layer.kernel)
        # What is left out and what is rounded are at right angles, but for products of two roundings.
        error = ratio(math.hypot(missing, product.distance(written)), norm)
        self.results.append(LayerResult(stem, LORA.name, product.rank, norm, error))

    def finish(self, header: Mapping[str, str], convention: Convention | None, notes: Sequence[str]) -> LoraResult:
        """Write the file, replacing one that is there, and return the result."""
        entries = safetensors_header.ordered(entry for entry, _ in self._entries.values())
        with files.writing(_FIELD, self.target):
            self._spool.flush()
            values, about = map(self._read, entries), {"format": "pt", **header}
            written = safetensors_file.write(self.target, entries, values, about)
        return LoraResult.of_layers(written, None if convention is None else convention.name, self.results, notes)

    def finish_as(
        self, file: AdapterFile, remark: str, notes: Sequence[str], former: Mapping[str, str] | None = None
    ) -> LoraResult:
        """Finish a file of LoRAs in the convention of an open one, which has most of the header unless `former` has."""
        header = header_of(file.header if former is None else former, self.layers, remark)
        if file.convention is not None and file.convention.is_peft:
            header |= peft_settings(self.layers)
        return self.finish(header, file.convention, notes)

    def _read(self, entry: TensorRange) -> Tensor:
        if not entry.num_bytes:
            return torch.empty(entry.shape, dtype=entry.dtype)
        self._spool.seek(self._entries[entry.name][1])
        return torch.frombuffer(bytearray(self._spool.read(entry.num_bytes)), dtype=entry.dtype).reshape(entry.shape)


@contextmanager
def rewriting(request: RewriteRequest) -> Iterator[NewAdapterFile]:
    """Begin the file of a request; refuses one that exists unless it may be overwritten."""
    require_target(request.output, request.overwrite)
    with ExitStack() as stack:
        yield NewAdapterFile(request.output, request.dtype and export.DTYPES[request.dtype], stack)


def _close(spool: IO[bytes]) -> None:
    with suppress(OSError):  # of a disk that is full, once more
        spool.close()


def require_target(target: Path, overwrite: bool) -> None:
    """Refuse a file that is not to be written, before anything is read."""
    if target.suffix != ".safetensors" or target.is_dir():
        raise UserError(
            "LoRA files are written as .safetensors",
            code="output-file-invalid",
            field=_FIELD,
            value=str(target),
            remedy=f"name a file, such as {target.stem or 'lora'}.safetensors",
        )
    index = target.with_name(target.name + safetensors_file.INDEX_SUFFIX)
    if (target.exists() or index.exists()) and not overwrite:
        raise exists_already(target)


def exists_already(target: Path) -> UserError:
    """Return the error for an output that is there."""
    return UserError(
        "it exists already",
        code="output-file-invalid",
        field=_FIELD,
        value=str(target),
        remedy="give --overwrite to replace it, or name another one",
    )


def header_of(former: Mapping[str, str], layers: Mapping[str, WrittenLayer], remark: str = "") -> dict[str, str]:
    """Return the header of a file of updates of scale 1: what a former one says, with what is different now.

    `remark` goes before the comment of the training, where kohya's readers look.
    """
    header = {key: value for key, value in former.items() if key not in _OF_THE_FILE}
    ranks = {layer.rank for layer in layers.values()}
    dim = str(*ranks) if len(ranks) == 1 else "Dynamic"
    header |= {"ss_network_dim": dim, "ss_network_alpha": dim}
    if former.get("ss_network_module", "").startswith("lycoris") and {layer.type for layer in layers.values()} == {
        LORA
    }:
        header["ss_network_module"] = "networks.lora"
        header.pop("ss_network_args", None)
    if comment := "; ".join(filter(None, [remark, former.get("ss_training_comment")])):
        header["ss_training_comment"] = comment
    return header


def peft_settings(layers: Mapping[str, WrittenLayer]) -> dict[str, str]:
    """Return the header field with peft's settings of LoRAs, by the part of the pipeline that their names begin with."""
    parts: dict[str, dict[str, WrittenLayer]] = defaultdict(dict)
    for stem, layer in layers.items():
        part, _, name = stem.partition(".")
        parts[part][text_encoders.within(stem) if text_encoders.is_part(part) else name] = layer
    settings: dict[str, dict[str, object]] = defaultdict(dict)
    for part, own in parts.items():
        ranks = {name: layer.rank for name, layer in own.items()}
        common = Counter(ranks.values()).most_common(1)[0][0]
        dora = any(layer.dora for layer in own.values())
        found: dict[str, object] = {"r": common, "lora_alpha": common, "target_modules": sorted(own), "use_dora": dora}
        if len({*ranks.values()}) > 1:
            # The longest names first: peft takes the first key that a layer's name is or ends with.
            by_layer = {name: ranks[name] for name in sorted(ranks, key=len, reverse=True)}
            found |= {"rank_pattern": by_layer, "alpha_pattern": by_layer}
        settings[part] = found
    return adapter_files.settings_field(settings)
