"""SimpleTuner's `init_lora`: what its training continues from."""

import json

import peft
from cases import Case, read_all
from of_diffusers import merged
from safetensors import safe_open
from simpletuner.helpers.training.adapter import load_lora_weights
from torch import Tensor


def read(case: Case) -> tuple[dict[str, Tensor], list[str]]:
    """Load a file into an adapter of the settings that SimpleTuner would be given, those of its header."""
    network, part = case.network(), case.about["part"]
    settings = {"r": case.about["rank"], "lora_alpha": case.about["rank"], "target_modules": case.about["targets"]}
    with safe_open(case.file, "pt") as file:
        header = json.loads((file.metadata() or {}).get("lora_adapter_metadata", "{}"))
    if f"{part}.target_modules" in header:
        settings["target_modules"] = header[f"{part}.target_modules"]
    peft.inject_adapter_in_model(peft.LoraConfig(**settings), network)
    untaken, _ = load_lora_weights({part: network}, str(case.file))
    return merged(network), sorted(untaken)


read_all(read)
