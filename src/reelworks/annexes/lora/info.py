"""Tell what a file holds: updates with their norms, other tensors, convention, model, metadata, and programs that read it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from reelworks.annexes.lora import base_network
from reelworks.annexes.lora.adapter_file import AdapterFile, look_into
from reelworks.annexes.lora.base_network import BaseNetwork
from reelworks.annexes.lora.contents import StoredLayer
from reelworks.annexes.lora.readers import readers_of
from reelworks.annexes.lora.request import LoraInfoRequest
from reelworks.annexes.lora.results import LayerResult, LoraResult
from reelworks.core import log, requests, results, torch_state
from reelworks.core.errors import UserError
from reelworks.models.storage import weights


@dataclass(frozen=True)
class LoraInfo:
    """A file of updates.

    Attributes:
        result: Its layers with ranks and norms; errors are None, since nothing was written.
        bytes: Size of the file.
        types: Number of layers by adapter type.
        ranks: Number of layers by rank, in ascending order; "none" are those without.
        dtypes: Number of tensors by data type.
        others: Number of tensors that are no update of a layer, by what they are.
        models: Models whose layers fit all layers of the file, or else most of them; several if their layers are alike.
        fitting: Number of the network's layers that fit these models.
        text_encoder_layers: Number of layers of text encoders.
        readers: Number of layers that each program takes and draws as they were trained, by its name; no program that takes none.
        metadata: Its header.
    """

    result: LoraResult = field(metadata=results.INLINED)
    bytes: int
    types: dict[str, int]
    ranks: dict[str, int]
    dtypes: dict[str, int]
    others: dict[str, int]
    models: list[str]
    fitting: int
    text_encoder_layers: int
    readers: dict[str, int]
    metadata: dict[str, str]


@requests.telling(LoraInfoRequest)
@torch_state.own()
def info(request: LoraInfoRequest) -> LoraInfo:
    """Return what a file holds, also of tensors that nothing here can use; reads it a layer at a time.

    Raises:
        UserError: It is no whole .safetensors file.
    """
    with look_into(str(request.file)) as file:
        layers: list[LayerResult] = []
        problems = {str(error.problem): None for error in file.contents.problems}
        with log.stage("reading", lambda: f"{len(layers)} of {len(file.layers)} layers"):
            for layer in file.layers:
                norm, problem = _norm(file, layer)
                problems |= {problem: None} if problem else {}
                layers.append(LayerResult(layer.stem, layer.type.name, layer.rank, norm, None))
        with log.stage("comparing its layers with those of known models"):
            base = base_network.closest_to(file, request.model)
            readers = readers_of(file, BaseNetwork(base.names) if base.names else None)
        problems |= {} if file.layers else {str(file.contents.without_updates(file.facts).problem): None}
        name = None if file.convention is None else file.convention.name
        path = weights.require_file(str(request.file), "file")
        ranks = Counter(layer.rank for layer in file.layers)
        return LoraInfo(
            LoraResult.of_layers([path], name, layers, [*problems]),
            path.stat().st_size,
            dict(Counter(layer.type.name for layer in file.layers)),
            {str(rank or "none"): ranks[rank] for rank in sorted(ranks, key=lambda rank: rank or 0)},
            file.dtypes,
            {what: len(keys) for what, keys in file.contents.others.items()},
            [*base.names],
            base.fitting,
            sum(layer.text_encoder is not None for layer in file.layers),
            readers,
            file.header,
        )


def _norm(file: AdapterFile, layer: StoredLayer) -> tuple[float | None, str | None]:
    """Return the norm of an update; of one that cannot be read, the reason."""
    try:
        return layer.type.norm(file.read(layer)), None
    except UserError as error:
        return None, error.problem
