"""LyCORIS's own merge."""

from cases import Case, bare, read_all
from lycoris.wrapper import LycorisNetwork, create_lycoris_from_weights
from safetensors.torch import load_file
from torch import Tensor


def read(case: Case) -> tuple[dict[str, Tensor], list[str]]:
    """Merge a file into the release's layers, whose names LyCORIS looks up."""
    module, stored = bare(case.linear("release")), load_file(case.file)
    LycorisNetwork.LORA_PREFIX = "lora_unet"
    network, _ = create_lycoris_from_weights(1.0, str(case.file), module, weights_sd=stored)
    names = {layer.lora_name for layer in network.loras}
    network.merge_to(1.0)
    untaken = [key for key in stored if key.split(".")[0] not in names]
    return {key.replace(".org_module.", "."): value for key, value in module.state_dict().items()}, untaken


read_all(read)
