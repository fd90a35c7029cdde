"""peft alone, by the settings in the file's header."""

import json

import peft
from cases import Case, read_all
from of_diffusers import merged
from safetensors import safe_open
from torch import Tensor


def read(case: Case) -> tuple[dict[str, Tensor], list[str]]:
    """Inject an adapter of the header's settings, load the file and merge it."""
    network, part = case.network(), case.about["part"]
    with safe_open(case.file, "pt") as file:
        tensors = {key.removeprefix(f"{part}."): file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        header = json.loads((file.metadata() or {})["lora_adapter_metadata"])
    settings = {key.removeprefix(f"{part}."): value for key, value in header.items()}
    kinds = {"LOHA": peft.LoHaConfig, "LOKR": peft.LoKrConfig, "OFT": peft.OFTConfig, "LORA": peft.LoraConfig}
    peft.inject_adapter_in_model(kinds[settings.pop("peft_type", "LORA")](**settings), network)
    untaken = peft.set_peft_model_state_dict(network, tensors).unexpected_keys
    return merged(network), list(untaken)


read_all(read)
