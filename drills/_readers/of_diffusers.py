"""Plain diffusers: `load_lora_weights` of a pipeline that has no other component, or `load_lora_adapter` where it has none."""

import inspect
import logging
from typing import Any

import diffusers
from cases import Case, read_all
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn


def read(case: Case) -> tuple[dict[str, Tensor], list[str]]:
    """Load a file and merge it."""
    network, about = case.network(), case.about
    untaken: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: untaken.append(record.getMessage()[:200])  # type: ignore[method-assign]
    logging.getLogger("diffusers").addHandler(handler)
    pipeline = _bare(about["pipeline"], about["part"], network) if about["type"] == "lora" else None
    if pipeline is not None:
        pipeline.load_lora_weights(str(case.folder), weight_name=case.file.name)
    else:
        network.load_lora_adapter(str(case.folder), weight_name=case.file.name, prefix=about["part"])
    logging.getLogger("diffusers").removeHandler(handler)
    # Of components that the pipeline lacks it says so, too.
    return merged(network), [text for text in untaken if "unexpected" in text.lower() and "text_encoder" not in text]


def _bare(name: str, part: str, network: nn.Module) -> Any:
    """Return a pipeline with one component, or None where there is none that loads LoRAs."""
    kind: Any = getattr(diffusers, name, None)
    if not hasattr(kind, "load_lora_weights"):
        return None
    if hasattr(kind, "update_components"):  # a modular pipeline, which is made without components
        pipeline = kind()
        pipeline.update_components(**{part: network})
        return pipeline
    asked = list(inspect.signature(kind.__init__).parameters.values())[1:]
    given = {one.name: None if one.default is inspect.Parameter.empty else one.default for one in asked}
    try:
        return kind(**given | {part: network})
    except Exception:  # its constructor asks the others for their sizes
        pipeline = object.__new__(type(name, (kind,), {"components": {part: network}}))
        vars(pipeline).update(given | {part: network})
        return pipeline


def merged(network: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a network with its adapters merged."""
    for child in list(network.modules()):
        if isinstance(child, BaseTunerLayer):
            child.merge()
    return {
        key.replace(".base_layer.", "."): value
        for key, value in network.state_dict().items()
        if ".lora_" not in key and ".lokr_" not in key and ".hada_" not in key
    }


if __name__ == "__main__":
    read_all(read)
