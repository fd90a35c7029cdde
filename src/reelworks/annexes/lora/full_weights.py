"""Open full weights to read them a tensor at a time: files, folders, pipelines, and checkpoints of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from torch import Tensor

from reelworks.core import units
from reelworks.core.errors import UserError, first_few
from reelworks.data.checkpoint import load, locate, names, read_lock, state_file, verify
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.run.folder import RunFolder
from reelworks.models.adapters import inject
from reelworks.models.export import export
from reelworks.models.storage import weights
from reelworks.models.storage.tensor_files import TensorFacts, TensorFiles

_CODES = (".quant_state.", ".scale_weight", ".weight_scale")  # of weights in codes, whatever their dtype


class FullWeights(Protocol):
    """Weights of a network by name, read one at a time."""

    @property
    def facts(self) -> Mapping[str, TensorFacts]:
        """Types and shapes by name."""

    @property
    def files(self) -> list[Path]:
        """The files that they are in."""

    def read(self, name: str) -> Tensor:
        """Return a tensor."""


class _RunWeights:
    """The weights in a checkpoint of a run that trained full weights, averaged where it has averages."""

    def __init__(self, path: Path) -> None:
        self._path, self._state = path, state_file.read(path)
        self._tensors = export.stored_weights(path, self._state, "ema" if "ema" in self._state.parts else "model")
        self.facts = {name: TensorFacts(each.dtype, each.shape) for name, each in self._tensors.items()}
        self.files = [path]
        if inject.parts(self.facts):
            raise UserError(
                "the run trained a LoRA, and no full weights",
                code="not-full-weights",
                remedy="export its LoRA with `reelworks checkpoints export`",
            )

    def read(self, name: str) -> Tensor:
        """Return a tensor, which is compared with its digest."""
        key = self._tensors[name].key
        return load.read_tensors(self._path, self._state, {key})[key]


@contextmanager
def open_weights(source: Path, field: str, part: str | None) -> Iterator[FullWeights]:
    """Open a file, a folder of shards, a pipeline, a hub id, a run or a checkpoint; `part` is the network's folder.

    Raises:
        UserError: It is damaged, stores weights in codes, or is none of these; names the field.
    """
    with weights.telling(field, str(source), anew=False):
        if RunFolder(source).exists or (names.parse_step(source.name) is not None and not source.is_file()):
            run, step = locate.locate(source)
            path = CheckpointFolder(run.checkpoints_folder).path(step)
            with read_lock.reading(path), verify.bad_told(path):
                yield _RunWeights(path)
            return
        with TensorFiles(weights.files_of(str(source), field, part or _part_of(source))) as tensors:
            _require_numbers(tensors.facts)
            bare_names(tensors.facts)  # which refuses two of one name, whatever is asked for
            yield tensors


def _part_of(source: Path) -> str | None:
    """Return the folder of the network in a pipeline, or on the hub; None for a file or a plain folder."""
    if not source.exists():
        return "transformer"
    if not (source / "model_index.json").is_file():
        return None
    return "unet" if (source / "unet").is_dir() else "transformer"


def _require_numbers(facts: Mapping[str, TensorFacts]) -> None:
    """Refuse weights in codes, to which nothing can be added without rounding it away."""
    coded = [
        name
        for name, (dtype, shape) in facts.items()
        if dtype is None
        or (len(shape) > 1 and (dtype.itemsize == 1 or (name.endswith(".weight") and not dtype.is_floating_point)))
        or any(code in name for code in _CODES)
    ]
    if coded:
        raise UserError(
            f"{len(coded):,} of its {len(facts):,} tensors {units.verb(len(coded), 'are')} stored in 8 bits or fewer, or in whole numbers: {first_few(coded)}",
            code="weights-quantised",
            remedy="name the weights in bfloat16, float16 or float32",
        )


def bare_names(facts: Mapping[str, TensorFacts]) -> dict[str, str]:
    """Return the names of tensors by those without the prefixes of wrappers, such as `model.diffusion_model.`."""
    return weights.by_bare_name({name: name for name in facts})
