"""Install the package that ships the network beside the tests, and turn its tensors into a file of diffusers' keys."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from terrain.network import NETWORK
from terrain.spec import FAMILY

SHIPS_IT = "adaptive-terrain-diffusion==0.4.2"
_READERS = ("onnx==1.23.2", "onnxruntime==1.32.0")
_MIDDLE = 0.5  # of the difficulties 0 to 1, an input of the network; its part of the embedding of times is constant
_RESNET = {
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
_OUTSIDE = {
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "conv_in": "input_blocks.0.0",
    "conv_out": "out.2",
}


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
    """Return the tensors and the answers of ONNX Runtime, by an environment in a folder; None without a registry."""
    environment, shipped = folder / "environment", folder / "shipped"
    python = environment / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "venv", environment], check=True, timeout=120)
    for arguments in (_READERS, ("--no-deps", "--target", shipped, SHIPS_IT)):
        if subprocess.run([*pip, *arguments], check=False, timeout=400).returncode != 0:
            return None
    (model,) = shipped.rglob("*.onnx")
    written = folder / "tensors.npz", folder / "answers.npz"
    script = Path(__file__).with_name("read_onnx.py")
    subprocess.run([python, script, model, str(_MIDDLE), *written], check=True, timeout=300)
    tensors, answers = ({name: torch.from_numpy(value) for name, value in np.load(file).items()} for file in written)
    return tensors, answers


def network() -> nn.Module:
    """Build the network with fresh weights."""
    return NETWORK.build(FAMILY.presets["terrain"].config)


def write(tensors: dict[str, Tensor], file: Path) -> None:
    """Write a single file with diffusers' keys; all tensors of the network must be there."""
    module = network()
    state = dict(_renamed(tensors)) | dict(zip(_norms(module), _numbered(tensors), strict=True))
    difficulty = nn.functional.silu(_linear(tensors, "label_emb.0", torch.tensor([_MIDDLE])))
    state["time_embedding.linear_2.bias"] += _linear(tensors, "label_emb.2", difficulty)
    assert state.keys() == module.state_dict().keys()
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, file)


def _linear(tensors: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return nn.functional.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])


def _numbered(tensors: dict[str, Tensor]) -> Iterator[Tensor]:
    for number in range(sum(name.startswith("norm.") for name in tensors) // 2):
        yield from (tensors[f"norm.{number}.weight"], tensors[f"norm.{number}.bias"])


def _norms(module: nn.Module) -> list[str]:
    """Return the names of norms' tensors, in the order in which the norms are used."""
    used: list[str] = []
    for name, one in module.named_modules():
        if isinstance(one, nn.GroupNorm):
            one.register_forward_hook(lambda *_, name=name: used.extend((f"{name}.weight", f"{name}.bias")))
    with torch.no_grad():
        module(torch.zeros(1, 1, 16, 16), 1)
    return used


def _renamed(tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors but those of norms and of the difficulty, by diffusers' names."""
    names = dict(_OUTSIDE)
    attention = {"mid_block.attentions.0": "middle_block.1"}

    def resnet(own: str, there: str) -> None:
        names.update({f"{own}.{layer}": f"{there}.{other}" for layer, other in _RESNET.items()})

    for number, place in ((0, 0), (1, 2)):
        resnet(f"mid_block.resnets.{number}", f"middle_block.{place}")
    for level in range(5):
        for layer in range(5):
            place = 5 * level + layer
            down, up = f"input_blocks.{place + 1}", f"output_blocks.{place}"
            resnet(f"down_blocks.{level}." + ("downsamplers.0" if layer == 4 else f"resnets.{layer}"), f"{down}.0")
            resnet(f"up_blocks.{level}.resnets.{layer}", f"{up}.0")
            attention[f"down_blocks.{level}.attentions.{layer}"] = f"{down}.1"
            attention[f"up_blocks.{level}.attentions.{layer}"] = f"{up}.1"
        # Behind the attention of a level that has one.
        resnet(f"up_blocks.{level}.upsamplers.0", f"output_blocks.{5 * level + 4}.{2 if level < 3 else 1}")
    for end in ("weight", "bias"):
        for own, there in names.items():
            if (tensor := tensors.get(f"{there}.{end}")) is not None:
                yield f"{own}.{end}", tensor.clone()
        for own, there in attention.items():
            if (joint := tensors.get(f"{there}.qkv.{end}")) is not None:
                yield from zip((f"{own}.to_{part}.{end}" for part in "qkv"), joint.squeeze().chunk(3), strict=True)
                yield f"{own}.to_out.0.{end}", tensors[f"{there}.proj_out.{end}"].squeeze()
