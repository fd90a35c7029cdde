"""Tell what a file of updates holds: convention, model, ranks, norms, metadata, and the programs that read it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from reelworks.core import log, requests, results
from reelworks.lora_tools import base_network
from reelworks.lora_tools.adapter_file import AdapterFile, open_adapter
from reelworks.lora_tools.request import LoraInfoRequest
from reelworks.lora_tools.results import LayerResult, LoraResult
from reelworks.models import weights


@dataclass(frozen=True)
class LoraInfo:
    """A file of updates.

    Attributes:
        result: Its layers with ranks and norms; errors are None, since nothing was written.
        bytes: Size of the file.
        types: Number of layers by adapter type.
        ranks: Number of layers by rank, in ascending order; "none" are those without.
        dtypes: Number of tensors by data type.
        models: Models whose layers fit all layers of the file, or else most of them; several if their layers are alike.
        fitting: Number of the network's layers that fit these models.
        text_encoder_layers: Number of layers of text encoders.
        readers: Programs that read it as it was trained.
        metadata: Its header.
    """

    result: LoraResult = field(metadata=results.INLINED)
    bytes: int
    types: dict[str, int]
    ranks: dict[str, int]
    dtypes: dict[str, int]
    models: list[str]
    fitting: int
    text_encoder_layers: int
    readers: list[str]
    metadata: dict[str, str]


@requests.telling(LoraInfoRequest)
def info(request: LoraInfoRequest) -> LoraInfo:
    """Return what a file holds; reads it a layer at a time.

    Raises:
        UserError: The file is damaged, or holds no updates.
    """
    with open_adapter(str(request.file), "file") as file:
        layers: list[LayerResult] = []
        with log.stage("reading", lambda: f"{len(layers)} of {len(file.layers)} layers"):
            for layer in file.layers:
                norm = layer.type.norm(file.read(layer))
                layers.append(LayerResult(layer.stem, layer.type.name, layer.rank, norm, None))
        with log.stage("comparing its layers with those of known models"):
            base = base_network.closest_to(file, request.model)
        name = None if file.convention is None else file.convention.name
        path = weights.require_file(str(request.file), "file")
        ranks = Counter(layer.rank for layer in file.layers)
        return LoraInfo(
            LoraResult.of_layers([path], name, layers),
            path.stat().st_size,
            dict(Counter(layer.type.name for layer in file.layers)),
            {str(rank or "none"): ranks[rank] for rank in sorted(ranks, key=lambda rank: rank or 0)},
            file.dtypes,
            [*base.names],
            base.fitting,
            sum(layer.text_encoder is not None for layer in file.layers),
            readers_of(file),
            file.header,
        )


def readers_of(file: AdapterFile) -> list[str]:
    """Return the programs that are known to read all layers of a file as they were trained."""
    if file.convention is None:
        return []
    by_layer = [layer.type.readers(layer.keys, file.convention) for layer in file.layers]
    return [program for program in by_layer[0] if all(program in programs for programs in by_layer)]
