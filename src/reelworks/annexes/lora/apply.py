"""Add updates to full weights, a tensor at a time, and write the result in shards."""

from __future__ import annotations

import math
import re
import shutil
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from reelworks.annexes.lora import base_network, output
from reelworks.annexes.lora.adapter_file import AdapterFile, open_adapter
from reelworks.annexes.lora.base_network import BaseNetwork
from reelworks.annexes.lora.contents import StoredLayer
from reelworks.annexes.lora.full_weights import FullWeights, bare_names, open_weights
from reelworks.annexes.lora.request import ApplyLorasRequest
from reelworks.annexes.lora.results import LayerResult, LoraResult, ratio
from reelworks.core import files, log, requests, storage, torch_state, units, user_files
from reelworks.core.errors import UserError, first_few
from reelworks.core.units import plural
from reelworks.data.checkpoint import safetensors_header
from reelworks.data.checkpoint.safetensors_header import TensorRange
from reelworks.models.adapters import key_mapping, text_encoders
from reelworks.models.export import export, safetensors_file
from reelworks.models.storage import weights as weight_files
from reelworks.models.storage.tensor_files import TensorFacts, TensorFiles

_BLOCK = 1 << 22  # numbers of a weight that are widened at once: 32 MB
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")
_CONFIG = "config.json"
_NETWORK = "the network"
_MARK = {"reelworks_written_by": "lora apply"}  # of a result's weights, in their headers


class _RowRange(NamedTuple):
    """Rows of a weight that get rows of an update."""

    begin: int
    length: int
    of_update: int  # first row of the update


class _Place(NamedTuple):
    """A weight that an update goes to, and the number of rows that the whole update has."""

    weight: str
    update_rows: int
    rows: _RowRange


class _Edit(NamedTuple):
    """An update of some rows of a weight."""

    file: AdapterFile
    strength: float
    layer: StoredLayer
    rows: _RowRange


class _Difference(NamedTuple):
    """A tensor of a file that is added to a weight or a bias as it is."""

    file: AdapterFile
    strength: float
    key: str


@requests.telling(ApplyLorasRequest)
@torch_state.own()
def apply(request: ApplyLorasRequest) -> LoraResult:
    """Write full weights with updates added, in the dtype of each weight, to a new folder of shards with an index.

    The relative error of a weight is what rounding to that dtype takes from its update, as a share of it.

    Raises:
        UserError: A file is damaged or of another network, or the weights are in codes.
    """
    _require_folder(request)
    with open_weights(request.base, "base", request.part) as base, ExitStack() as stack:
        adapters = [(stack.enter_context(open_adapter(path, "files")), strength) for path, strength in request.weighted]
        edits, notes = _edits(base, adapters, request)
        layers: list[LayerResult] = []
        with log.stage("adding", lambda: f"{len(layers)} of {len(edits)} weights"):
            written = _write(base, edits, layers, adapters, request)
        return LoraResult.of_layers(written, None, layers, notes)


def _require_folder(request: ApplyLorasRequest) -> None:
    target, base, problem = request.output, request.base.resolve(), ""
    with files.writing("output", target):
        there = [*target.iterdir()] if target.is_dir() else []
    if target.suffix == ".safetensors" or (target.exists() and not target.is_dir()) or target.resolve() == Path.cwd():
        problem = "weights are written to a folder, as shards with an index, which a new one replaces"
    elif others := {path.name for path in there} - _names_of_a_result(there):
        problem = f"it holds other files than those of a result: {first_few(sorted(others))}"
    elif there and target.resolve() in (base, *base.parents):
        problem = "it holds the base"
    if problem:
        raise UserError(
            problem,
            code="output-file-invalid",
            field="output",
            value=str(target),
            remedy="name another folder, and not the current one",
        )
    if there and not request.overwrite:
        raise output.exists_already(target)


def _names_of_a_result(there: Sequence[Path]) -> set[str]:
    """Return the names of files that an earlier call wrote: weights with the mark, their index, and the config beside them."""
    weights = [path for path in there if _MARK.items() <= _metadata(path).items()]
    beside = [f"{_SHARD.sub('', path.stem)}.safetensors{safetensors_file.INDEX_SUFFIX}" for path in weights]
    return {*(path.name for path in weights), *beside, *([_CONFIG] if weights else [])}


def _metadata(path: Path) -> dict[str, str]:
    """Return what the header of a file of weights says; nothing for other files."""
    with suppress(UserError, OSError), weight_files.opened(path) as file:
        return file.metadata() or {}
    return {}


# Where updates go


def _edits(
    base: FullWeights, adapters: Sequence[tuple[AdapterFile, float]], request: ApplyLorasRequest
) -> tuple[dict[str, list[_Edit | _Difference]], list[str]]:
    """Return the updates and differences of each weight by its name, and notes; the base is a network, or a text encoder.

    Raises:
        UserError: A layer has no weight, a weight has several updates without a sum, or there is nothing to add.
    """
    part = request.part if request.part and text_encoders.is_part(request.part) else ""
    encoder = _encoder_in(base.facts, part) if part else None
    matrices = {
        full: _folded(name.removesuffix(".weight"), part)
        for name, full in bare_names(base.facts).items()
        if name.endswith(".weight") and len(base.facts[full].shape) > 1
    }
    counts = Counter(matrices.values())
    weights = {name: full for full, name in matrices.items() if counts[name] == 1}
    edits: dict[str, list[_Edit | _Difference]] = defaultdict(list)
    notes = []
    for file, strength in adapters:
        network, layers = None, [layer for layer in file.layers if layer.text_encoder == encoder]
        if encoder is None and any(layer.folded not in weights for layer in layers):
            # Another convention may join layers, or name them otherwise.
            found = base_network.closest_to(file, request.model)
            network = base_network.resolve(found, file) if found.is_whole else None
        for name, edit in _edits_of(file, layers, strength, weights, base.facts, network):
            edits[name].append(edit)
        if others := Counter(layer.text_encoder or _NETWORK for layer in file.layers if layer not in layers):
            ways = _ways_to_parts(request.base, base.facts)
            parts = (
                f"{plural(count, 'layer')} of {name}{ways.get(name, '')}" for name, count in sorted(others.items())
            )
            notes.append(f"{file.source}: left out: {' and '.join(parts)}")
        own = {} if encoder else _differences_of(file, strength, base.facts, network)
        for name, difference in own.items():
            edits[name].append(difference)
        notes += file.left_out({each.key for each in own.values()})
    if not edits:
        raise UserError(
            f"nothing would be added to {request.part or _NETWORK}: {'; '.join(notes)}",
            code="lora-does-not-fit",
            field="files",
            value=adapters[0][0].source,
            remedy="give the --part that has its layers, or name another file",
        )
    for name, each in edits.items():
        is_rotated = any(
            isinstance(edit, _Edit) and edit.layer.type.depends_on_weight(edit.layer.keys) for edit in each
        )
        if is_rotated and len({(id(edit.file), type(edit)) for edit in each}) > 1:
            raise UserError(
                f"the result for {name} would depend on the order of the files, since a DoRA or OFT is among them",
                code="adapter-without-sum",
                field="files",
                value=each[-1].file.source,
                remedy="apply one file, and the next one to the result",
            )
    return edits, notes


def _folded(name: str, part: str) -> str:
    """Return the layer of a weight of the base, or of a text encoder in a folder, as `StoredLayer.folded` has it."""
    if not part:
        return name.replace(".", "_")
    own = text_encoders.in_single_file(name)
    return key_mapping.folded(own if text_encoders.part_of(own) else f"{part}.{own}")


def _encoder_in(names: Iterable[str], part: str) -> str:
    """Return the text encoder in a folder of a pipeline, as names of layers have it: that of the folder, or T5."""
    is_t5 = any(text_encoders.part_of(f"{part}.{name}") == text_encoders.T5 for name in names)
    return text_encoders.T5 if is_t5 else part


def _ways_to_parts(base: Path, names: Iterable[str]) -> dict[str, str]:
    """Return how a call takes layers of the network and of text encoders, for those that a pipeline or a single file has."""
    held = {text_encoders.part_of(text_encoders.in_single_file(name)) for name in names}
    found = {part: part for part in held if part is not None and text_encoders.is_part(part)}
    for folder in base.glob("text_encoder*/"):
        with suppress(UserError), TensorFiles(weight_files.files_of(str(base), "base", folder.name)) as tensors:
            found[_encoder_in(tensors.facts, folder.name)] = folder.name
    ways = {encoder: f" (--part {part})" for encoder, part in found.items()}
    return ways | {_NETWORK: " (without --part)"} if ways else {}


def _differences_of(
    file: AdapterFile, strength: float, facts: Mapping[str, TensorFacts], network: BaseNetwork | None
) -> dict[str, _Difference]:
    """Return the tensors of a file that are differences of weights and biases of the base, by the names of these.

    Those of norms that the release names otherwise than the base are not among them, nor are those of joined layers.
    """
    folded = {name.replace(".", "_"): full for name, full in bare_names(facts).items()}
    found = {}
    for key in file.others:
        if (difference := file.added_to(key)) is None:
            continue
        layer, end = key_mapping.layer_of(difference[0]), difference[1]
        targets = [] if network is None else network.targets_of(layer)
        own = [target.layer for target in targets if target.place.heights == (1,) and not target.place.swapped]
        spellings = [f"{name}.{end}" for name in (layer, *own)] + ([layer] if end == "weight" else [])
        name = next((folded[each] for spelling in spellings if (each := spelling.replace(".", "_")) in folded), None)
        if name is not None and facts[name].shape == file.facts[key].shape:
            found[name] = _Difference(file, strength, key)
    return found


def _edits_of(
    file: AdapterFile,
    layers: Sequence[StoredLayer],
    strength: float,
    weights: Mapping[str, str],
    facts: Mapping[str, TensorFacts],
    network: BaseNetwork | None,
) -> Iterator[tuple[str, _Edit]]:
    """Yield the updates of a file's layers with the names of their weights; refuses a layer without one."""
    lost = []
    for layer in layers:
        places = _places(layer, network, weights, facts)
        lost += [] if places else [layer.stem]
        for place in places:
            columns = math.prod(facts[place.weight].shape[1:])
            if layer.shape not in ((place.update_rows, columns), (0, columns)):
                raise UserError(
                    f"of another network: the update of {layer.stem} has {list(layer.shape)}, and {place.weight} needs "
                    f"{[place.update_rows, columns]}",
                    code="lora-does-not-fit",
                    field="files",
                    value=file.source,
                    remedy="name a file that was trained on this base",
                )
            yield place.weight, _Edit(file, strength, layer, place.rows)
    if lost:
        raise UserError(
            f"{len(lost):,} of its {len(layers):,} layers {units.verb(len(lost), 'have')} no weight in the base: {first_few(lost)}",
            code="lora-does-not-fit",
            field="files",
            value=file.source,
            remedy="name a base that has all layers, or the folder of the network with --part",
        )


def _places(
    layer: StoredLayer, network: BaseNetwork | None, weights: Mapping[str, str], facts: Mapping[str, TensorFacts]
) -> list[_Place]:
    """Return the weights that a layer of a file is, is a part of, or is made of; empty if one is missing."""
    if (weight := weights.get(layer.folded)) is not None:
        count = facts[weight].shape[0]
        return [_Place(weight, count, _RowRange(0, count, 0))]
    found: list[_Place] = []
    for target in network.targets_of(layer.name) if network is not None else ():
        released = network.place_of(target.layer) if network is not None else target.place
        own, joined = (weights.get(name.replace(".", "_")) for name in (target.layer, released.layer))
        weight, place = (own, target.place) if own is not None else (joined, released)
        if weight is None or (own is None and target.place == released):
            return []
        whole, part = sum(place.heights), place.heights[place.part]
        unit = facts[weight].shape[0] // (part if own is not None else whole)
        top, count = unit * sum(place.heights[: place.part]), unit * part
        # A file of the release has rows of several weights, and the weights of a release have rows of several updates.
        begin, first, rows = (0, top, unit * whole) if own is not None else (top, 0, count)
        half = count // 2
        if place.swapped:
            found.append(_Place(weight, rows, _RowRange(begin, half, first + half)))
            found.append(_Place(weight, rows, _RowRange(begin + half, half, first)))
        else:
            found.append(_Place(weight, rows, _RowRange(begin, count, first)))
    return found


# Numbers


def _write(
    base: FullWeights,
    edits: Mapping[str, Sequence[_Edit | _Difference]],
    layers: list[LayerResult],
    adapters: Sequence[tuple[AdapterFile, float]],
    request: ApplyLorasRequest,
) -> list[Path]:
    """Write shards, an index and the base's config to a temporary folder that then takes its place."""
    # Weights in codes, whose type is none of torch's, were refused when they were opened.
    entries = safetensors_header.ordered(
        TensorRange(name, dtype, shape) for name, (dtype, shape) in base.facts.items() if dtype is not None
    )
    values = (_value(base, entry.name, edits.get(entry.name, ()), layers) for entry in entries)
    name = _SHARD.sub("", base.files[0].stem) if base.files[0].is_file() else "diffusion_pytorch_model"
    sources = ", ".join(f"{Path(file.source).name}={strength:g}" for file, strength in adapters)
    metadata = {"format": "pt", "modelspec.merged_from": sources} | _MARK
    target = request.output.resolve()  # a link stays, and leads to the new weights
    with files.writing("output", target):
        target.parent.mkdir(parents=True, exist_ok=True)
        files.sweep(target)
        temporary = files.temporary_name(target)
        try:
            storage.mkdir(temporary)
            written = safetensors_file.write(
                temporary / f"{name}.safetensors", entries, values, metadata, request.shard_bytes
            )
            if config := _config(base):
                files.write_bytes(temporary / _CONFIG, config)
            _replace(target, temporary)
        finally:
            storage.rmtree_if_possible(temporary)
    return [request.output / path.name for path in written]


def _config(base: FullWeights) -> bytes | None:
    """Return the config beside the base's files, which says how to build the network."""
    with suppress(OSError):
        return user_files.read_bytes(base.files[0].parent / _CONFIG, user_files.SETTINGS)
    return None


def _replace(target: Path, temporary: Path) -> None:
    """Put a complete folder into its place; what was there goes last, and back if that fails."""
    former = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.old")
    try:
        if target.exists():
            storage.rename(target, former)
        storage.rename(temporary, target)
    except BaseException:
        with suppress(OSError):  # nothing was there
            storage.rename(former, target)
        raise
    storage.fsync_folder(target.parent)
    shutil.rmtree(former, ignore_errors=True)


def _value(base: FullWeights, name: str, edits: Sequence[_Edit | _Difference], layers: list[LayerResult]) -> Tensor:
    """Return a weight with its updates, and note how far rounding takes it from them.

    Sums are in float64: rounding to float32 and to float64, in which bases may be, is to be seen or not to be.
    """
    weight = base.read(name)
    if not edits:
        return weight
    matrix = weight.view(len(weight), -1)
    updates = [(edit, edit.file.read(edit.layer, torch.float64)) for edit in edits if isinstance(edit, _Edit)]
    differences = [
        (each.strength, each.file.read_other(each.key).view(len(weight), -1))
        for each in edits
        if isinstance(each, _Difference)
    ]
    norm = error = 0.0
    step = max(_BLOCK // matrix.shape[1], 1)
    for begin in range(0, len(matrix), step):
        stored = matrix[begin : begin + step].double()
        exact = stored.clone()
        for edit, kinds in updates:
            _add(exact, begin, edit, kinds)
        for strength, difference in differences:
            exact += strength * difference[begin : begin + step].double()
        rounded = export.cast(name, exact, weight.dtype)
        norm = math.hypot(norm, float((exact - stored).norm()))
        error = math.hypot(error, float((rounded.double() - exact).norm()))
        matrix[begin : begin + step] = rounded
    types = "+".join(sorted({edit.layer.type.name if isinstance(edit, _Edit) else "diff" for edit in edits}))
    layers.append(LayerResult(name, types, None, norm, ratio(error, norm)))
    return weight


def _add(rows: Tensor, begin: int, edit: _Edit, kinds: Mapping[str, Tensor]) -> None:
    """Add an update to rows of a weight, of which the first has the number `begin`, in place."""
    first = max(edit.rows.begin, begin)
    last = min(edit.rows.begin + edit.rows.length, begin + len(rows))
    if first < last:
        shift = edit.rows.of_update - edit.rows.begin
        own = rows[first - begin : last - begin]
        with edit.file.telling():
            own.copy_(edit.layer.type.applied(own, kinds, edit.strength, slice(first + shift, last + shift)))
