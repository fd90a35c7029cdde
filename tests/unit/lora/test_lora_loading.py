"""A file loaded as its line at the end of a training says has the trained weights, of the network and of text encoders."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from diffusers_readers import merged
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel

from reelworks.core.errors import UserError
from reelworks.data.run.folder import RunFolder
from reelworks.models.adapters import files, inject
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.export import exports_folder
from reelworks.models.export.lora import LoraFile
from reelworks.models.text.trained_texts import CaptionedDenoiser, ClipTexts
from reelworks.testing import contract

NAME = "sdxl-tiny"


def clip() -> CLIPTextModel:
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 20}
    return CLIPTextModel(CLIPTextConfig(num_hidden_layers=2, **sizes))


def adapted(settings: LoraConfig) -> Any:
    """A network, with its text encoder if asked for, with a new adapter."""
    denoiser: Any = contract.build(NAME)
    if settings.text_encoders:
        denoiser = CaptionedDenoiser(denoiser, {"text_encoder": ClipTexts(clip(), lambda *_: None)})
    inject.inject(denoiser, settings, seed=0)
    return denoiser


def written(path: Path, settings: LoraConfig) -> dict[str, Tensor]:
    """Write the file of a random adapter, and return all weights with it."""
    denoiser = adapted(settings)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in inject.weights(denoiser.module).values():
            value.add_(torch.randn(value.shape, generator=generator), alpha=0.3)
    file = LoraFile("diffusers", settings.adapter, NAME, "unet").content(inject.weights(denoiser.module))
    save_file({key: value.contiguous() for key, value in file.tensors.items()}, path, file.header)
    return inject.merge(denoiser.module)


def pipeline() -> Any:
    kind: Any = diffusers.StableDiffusionXLPipeline
    empty = dict.fromkeys(("vae", "text_encoder_2", "tokenizer", "tokenizer_2", "scheduler"))
    return kind(unet=contract.build(NAME).module, text_encoder=clip(), **empty)


def farthest(module: nn.Module, wanted: dict[str, Tensor], part: str = "") -> float:
    """The largest distance between a module's weights, with what was loaded into it, and those of a part."""
    found = merged(module)
    own = {key.removeprefix(f"{part}."): value for key, value in wanted.items() if key.startswith(part)}
    own = {key if key in found else key.removeprefix("text_model."): value for key, value in own.items()}
    return max(float((found[key] - value).abs().max()) for key, value in own.items())


@pytest.mark.parametrize("dora", [False, True])
def test_diffusers_gets_the_lora_of_both_parts(tmp_path: Path, dora: bool) -> None:
    """And so does a network that begins with the file."""
    path, settings = tmp_path / "a.safetensors", LoraConfig(rank=2, alpha=3.0, dora=dora, text_encoders=True)
    wanted, pipe = written(path, settings), pipeline()
    before = farthest(pipeline().text_encoder, wanted, "text_encoder")
    pipe.load_lora_weights(str(path))
    assert farthest(pipe.unet, wanted, "unet") < 1e-5
    assert farthest(pipe.text_encoder, wanted, "text_encoder") < 1e-5 < before
    begun = adapted(settings)
    files.load_into(begun.module, settings.model_copy(update={"weights": str(path)}), begun.config)
    assert farthest(begun.module, wanted) < 1e-5


PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "train-a-lora.md"


@pytest.mark.parametrize(
    ("trained", "asked", "lines"),
    [
        ({"rank": 4}, {}, "rank = 4"),
        ({"text_encoders": False}, {}, "text_encoders = false"),
        (
            {"rank": 4, "text_encoders": False, "targets": ["to_q"]},
            {},
            'rank = 4 text_encoders = false targets = ["to_q"]',
        ),
        ({"dora": True, "targets": ["to_q", "to_v"]}, {}, 'dora = true targets = ["to_q", "to_v"]'),
        ({"type": "lokr", "decompose_factor": 2}, {}, 'type = "lokr" decompose_factor = 2'),
        ({"rank": 4}, {"type": "loha"}, 'type = "lora" rank = 4'),
    ],
)
@pytest.mark.quick_cases(4)
def test_a_refused_file_is_taken_with_the_lines_that_its_error_names(
    tmp_path: Path, trained: dict[str, Any], asked: dict[str, Any], lines: str
) -> None:
    """Also by a recipe that adapts text encoders, whether the file does so or not."""
    path, own = (
        tmp_path / "a.safetensors",
        {"rank": 2, "text_encoders": True, "weights": str(tmp_path / "a.safetensors")},
    )
    wanted = written(path, LoraConfig.model_validate(own | trained))
    settings = LoraConfig.model_validate(own | asked)
    begun = adapted(settings)
    with pytest.raises(UserError, match=r"set in \[lora\], as the file was trained:") as caught:
        files.load_into(begun.module, settings, begun.config)
    pasted = caught.value.remedy.splitlines()[1:]
    assert " ".join(line.strip() for line in pasted) == lines
    settings = LoraConfig.model_validate(own | asked | tomllib.loads("\n".join(pasted)))
    begun = adapted(settings)
    files.load_into(begun.module, settings, begun.config)
    assert farthest(begun.module, wanted) < 1e-5


SETTINGS = [
    *(LoraConfig(type="lora", rank=2, alpha=3.0, text_encoders=texts) for texts in (False, True)),
    *(LoraConfig(type="lokr", rank=2, alpha=3.0, text_encoders=texts) for texts in (False, True)),
    *(LoraConfig(type="loha", rank=2, alpha=3.0, text_encoders=texts) for texts in (False, True)),
    *(LoraConfig(type="oft", block_size=4, text_encoders=texts) for texts in (False, True)),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: f"{one.type}-{one.text_encoders}")
@pytest.mark.quick_cases(4)
def test_each_way_that_the_end_of_a_training_tells_loads_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: LoraConfig
) -> None:
    """Calls of diffusers, or the code of the page that is named."""
    path = exports_folder.path_of(RunFolder(tmp_path), 3, "ema", "diffusers")
    path.parent.mkdir()
    wanted = written(path, settings)
    (line,) = exports_folder.how_to_use([path], settings, "unet")
    ways = re.findall(r"pipe\..*?\)", line)
    if not ways:
        assert line == f"{path}: for peft, as docs/how-to/train-a-lora.md shows"
        (code,) = re.findall(r"```python\n([^`]*peft\.set_peft_model_state_dict[^`]*)```", PAGE.read_text("utf-8"))
        kind = {"lokr": "LoKr", "loha": "LoHa", "oft": "OFT"}[settings.type]
        ways = [code.replace("LoHaConfig", f"{kind}Config", 1).replace("mug.safetensors", path.as_posix())]
    for way in ways:
        pipe = pipeline()
        exec(way, {"pipe": pipe, "pipeline": pipe})
        assert farthest(pipe.unet, wanted, "unet" if settings.text_encoders else "") < 1e-5, way
        if settings.text_encoders and "unet.load" not in way:
            assert farthest(pipe.text_encoder, wanted, "text_encoder") < 1e-5, way


def test_the_file_of_the_second_expert_goes_to_the_second_network(tmp_path: Path) -> None:
    path = exports_folder.path_of(RunFolder(tmp_path), 3, "ema", "diffusers")
    paths = [path.with_stem(f"{path.stem}-{name}") for name in ("transformer", "transformer_2")]
    first, second = exports_folder.how_to_use(paths, LoraConfig(), "transformer")
    assert f'pipe.load_lora_weights("{paths[0].as_posix()}"), ' in first
    assert f'pipe.load_lora_weights("{paths[1].as_posix()}", load_into_transformer_2=True), ' in second
    assert "pipe.transformer.load_lora_adapter" in first
    assert "pipe.transformer_2.load_lora_adapter" in second
