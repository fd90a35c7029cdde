"""The Python that a model card shows draws with the pipeline of its family what this program draws."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import tiny_families
import tiny_recipe
import torch
from safetensors.torch import save_file
from unrounded import Unrounded

from reelworks.annexes.hub.card import Card
from reelworks.annexes.hub.trained import Trained, TrainedPart
from reelworks.core.shape import Shape
from reelworks.inference.generate import diffusers_pipeline
from reelworks.inference.generate.pipeline import GenerateOptions
from reelworks.models import components, registry
from reelworks.models.adapters import files, inject
from reelworks.models.diffusers_denoiser import DiffusersNetwork
from reelworks.models.family import SamplingDefaults
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.models.text import encoders
from reelworks.training.assembly import build
from reelworks.training.recipe import recipe_file

CPU = torch.device("cpu")
PROMPT = "two cats sit on a wall in the sun"
SHIFTED = {"objective": {"timestep_shift": 3.0}}  # for our own sampler, as the scheduler of the weights
# Recipes whose card has a call, by the preset and what is said beside it; the first is quick.
DRAWN: list[tuple[str, dict[str, Any]]] = [
    ("wan-tiny", {}),
    ("hunyuan-image-2.1-tiny", {}),
    ("flux2-tiny", {}),
    ("sdxl-tiny", {"objective": {"name": "v-prediction", "zero_terminal_snr": True}}),
    ("sdxl-tiny", {}),
    ("chroma-tiny", {}),
    ("ernie-image-tiny", {}),
    ("flux-tiny", {}),
    ("flux-kontext-tiny", {}),
    ("flux2-klein-tiny", {}),
    ("hunyuan-video-1.5-tiny", {}),
    ("kandinsky5-tiny", {}),
    ("krea2-tiny", {}),
    ("longcat-image-tiny", SHIFTED),
    ("ltx-tiny", {}),
    ("lumina-image-2.0-tiny", {}),
    ("qwen-image-tiny", {}),
    ("sana-video-tiny", {}),
    ("sd1.5-tiny", {"objective": {"name": "epsilon"}}),
    ("sd3-tiny", {}),
    ("z-image-tiny", {}),
]
# Pipelines that are modular, or whose parts lie in several places; and those that draw otherwise than we do.
PARTS_ELSEWHERE = {"anima-tiny", "flux3-tiny", "hidream-i1-tiny", "minimax-h3-tiny", "qwen-image-2.1-tiny"}
NOT_DRAWN = PARTS_ELSEWHERE | {"ideogram-4-tiny", "kandinsky5-image-tiny", "ltx-2-tiny"}


def recipe_for(name: str, place: object = "c/d", **changes: Any) -> Any:
    """Return the recipe of a LoRA on a family's model with its own encoders."""
    values = {"bucket": [{"resolution": "64px", "num_frames": 1, "batch_size": 1}], "lora": {"rank": 2}}
    values |= {"precision": {"compute": "float32"}} | tiny_families.recipe_of(name, place)
    if name.startswith("sdxl"):
        changes.setdefault("objective", {"name": "epsilon"})
    return recipe_file.parse(tiny_recipe.changed(tiny_recipe.least(**values), changes))


def card_of(recipe: Any, scale: float = 3.0, steps: int = 9) -> Card:
    """Return the card of a recipe's LoRA, which is drawn with a guidance scale."""
    pictures = components.family_config(recipe.model).pictures_only
    trained = Trained(1, 0, {"1 × cpu": 1.0}, {}, [TrainedPart(1, 1, recipe, None, 1)], {})
    files = [("lora.safetensors", "diffusers")]
    shape, sampling = Shape(1 if pictures else 9, 32, 64), SamplingDefaults(scale, steps)
    return Card("a/b", "run", "c/d", None, PROMPT, files, [], None, trained, shape, sampling, 12.0)


def example(card: Card) -> str | None:
    """Return the Python of a card."""
    found = re.search(r"```python\n(.*?)```", card.to_text(), re.DOTALL)
    return found and found[1]


def write_lora(recipe: Any, module: torch.nn.Module, file: Path) -> None:
    """Give the LoRA of a network values that move it, and write them."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in module.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) / 10
    part = components.family_config(recipe.model).network.part
    found = files.to_file(
        inject.weights(module), "diffusers", adapter=recipe.lora.adapter, part=part, model=recipe.model.name
    )
    save_file({name: tensor.contiguous() for name, tensor in found.tensors.items()}, file, found.header)


def run_here(code: str, name: str, place: Path) -> np.ndarray:
    """Run the Python of a card with a folder in place of the hub, in float32 on the CPU, from a seed."""
    drawn = "result = pipeline("
    for old, new in {
        '"c/d", torch_dtype=torch.bfloat16': f"{str(place)!r}, torch_dtype=torch.float32",
        '"a/b"': repr(str(place)),
        '"cuda"': '"cpu"',
        drawn: f'{drawn}generator=torch.Generator().manual_seed(5), output_type="np", ',
    }.items():
        assert old in code
        code = code.replace(old, new)
    code = re.sub(r"\n(result\.images|export_to_video).*", "", code)
    if name == "longcat-image-tiny":  # which has it for prompts that are rewritten
        code = code.replace("torch_dtype", "text_processor=None, torch_dtype")
    if name == "sd3-tiny":  # whose CLIPs have 16 tokens, not 77
        code = code.replace("'max_sequence_length': -49", "'max_sequence_length': 12")
    if name == "chroma-tiny":  # which the card says
        kept = (
            "own = pipeline._prepare_attention_mask\npipeline._prepare_attention_mask = lambda **m: own(**m).bool()\n"
        )
        assert "attends to the padding" in code
        code = code.replace(drawn, kept + drawn)
    values: dict[str, Any] = {}
    with Unrounded() if name == "kandinsky5-tiny" else contextlib.nullcontext():
        exec(code, values)
    result = values["result"]
    frames = np.asarray(result.images if hasattr(result, "images") else result.frames)
    return (frames.reshape(-1, 32, 64, 3) * 255).round().astype(np.uint8)


@pytest.mark.filterwarnings("ignore:__array__ implementation", "ignore:`torch_dtype` is deprecated")
@pytest.mark.parametrize(("name", "changes"), DRAWN)
@pytest.mark.quick_cases(1)
def test_the_example_draws_what_we_draw(name, changes, tmp_path, monkeypatch):
    """From the same base, LoRA, words and seed, also where the base reads outputs otherwise than was trained."""
    monkeypatch.setitem(
        encoders.load_pipeline.__kwdefaults__, "dtype", torch.float32
    )  # texts as exact as the example's
    exact = encoders.CONTRACT.__class__(torch.float32, torch.float32, None, None, torch.float32, {})
    monkeypatch.setattr(encoders.FamilyTextEncoder, "contract", exact)
    tiny_families.write(name, tmp_path, **({"expand_timesteps": True} if name == "wan-tiny" else {}))
    recipe = recipe_for(name, tmp_path, **changes)
    denoiser, card = build.denoiser(recipe, CPU), card_of(recipe, steps=2)
    write_lora(recipe, denoiser.module, tmp_path / "lora.safetensors")
    options = GenerateOptions(card.shape, card.fps, *card.sampling[1::-1], seed=5)
    encoder, boundary = build.encoder(recipe, CPU), DtypeBoundary(denoiser)
    made = diffusers_pipeline.generate(recipe, boundary, encoder, [PROMPT], options).clips[0]
    theirs = run_here(example(card) or "", name, tmp_path)
    assert theirs.std() > 0
    assert np.abs(made.astype(int) - theirs).max() <= 1


def test_every_family_draws_by_its_example_or_says_only_how_it_is_loaded():
    """No family is left out above; what is not known to draw the same has no call."""
    of_words = set()
    for name, preset in registry.PRESETS.items():
        network, wants = registry.load_network(registry.family_of(name)), preset.config.conditioning
        given = wants.companions.needs or wants.companions.control_parts or wants.shown.first is not None or wants.sound
        if name.endswith("-tiny") and isinstance(network, DiffusersNetwork) and not given:
            of_words.add(name)
    assert of_words - {"wan-2.2-tiny"} == {name for name, _ in DRAWN} | NOT_DRAWN  # whose two networks have a file each
    for name in NOT_DRAWN:
        card = card_of(recipe_for(name))
        *before, load = (example(card) or "").splitlines()
        assert load == 'pipeline.load_lora_weights("a/b", weight_name="lora.safetensors")'
        assert hasattr(getattr(diffusers, card.pipeline or ""), "load_lora_weights")
        told = before == ["# pipeline: that of the base in diffusers"]
        assert told == (name in PARTS_ELSEWHERE), name
        assert told or "from diffusers import DiffusionPipeline" in before


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("wan-tiny", {"guidance_scale": 3.0, "num_frames": 9}),
        ("ltx-tiny", {"guidance_scale": 3.0, "num_frames": 9, "frame_rate": 12.0}),
        ("flux-tiny", {"guidance_scale": 3.0}),
        ("z-image-tiny", {"guidance_scale": 2.0}),  # which its pipeline counts from 0
        ("qwen-image-tiny", {"true_cfg_scale": 3.0, "negative_prompt": ""}),  # without which it takes no second pass
        ("kandinsky5-tiny", {"guidance_scale": 3.0, "num_frames": 9, "negative_prompt": ""}),
        ("ernie-image-tiny", {"guidance_scale": 3.0, "use_pe": False}),
        ("hunyuan-image-2.1-tiny", {}),  # which has a guider of its own
    ],
)
def test_the_call_is_short_where_the_pipeline_has_the_same(name, wanted):
    """The length of texts is said only where a recipe has another than the pipeline."""
    known = registry.TEXT_ENCODERS[registry.PRESETS[name].parts.text]
    published, shorter = (card_of(recipe_for(name, text_encoder={"max_length": n})) for n in (known.max_length, 9))
    assert published.call == wanted | {"num_inference_steps": 9, "height": 32, "width": 64}
    assert f"settings = {published.call}\nresult = pipeline(prompt=prompt, **settings)" in published.to_text()
    takes = name not in ("ernie-image-tiny", "hunyuan-image-2.1-tiny")
    assert shorter.call == published.call | ({"max_sequence_length": 9} if takes else {})


def test_what_no_pipeline_reads_has_no_call():
    """Texts of a layer before the last, another output of the network, and adapters of a pipeline that takes none."""
    clip = card_of(recipe_for("sd1.5-tiny", objective={"name": "epsilon"}, text_encoder={"name": "sd1.5-clip-skip-2"}))
    assert "| text encoder | `sd1.5-clip-skip-2` |" in clip.to_text()
    for card in (clip, card_of(recipe_for("wan-tiny", objective={"prediction": "sample"}))):
        assert card.call is None
        assert "pipeline(" not in (example(card) or "")
        assert "DiffusionPipeline.from_pretrained(" in (example(card) or "")


def test_a_network_without_a_pipeline_has_no_example():
    """Its captions are embedded by another family's pipeline, which cannot draw with it."""
    recipe = recipe_file.parse(tiny_recipe.least(model={"name": "opensora2-tiny"}, lora={"rank": 2}))
    card = card_of(recipe, 7.5)
    assert card.pipeline is None
    assert example(card) is None


def test_quoted_words_are_not_read_letter_by_letter(tmp_path, monkeypatch):
    """The card says so; the encoder of letters, whose values nobody reads, is not asked."""
    recipe = recipe_for("hunyuan-video-1.5-tiny", tiny_families.write("hunyuan-video-1.5-tiny", tmp_path))
    assert "# its pipeline also reads the letters of quoted words" in card_of(recipe).to_text()
    encoder = build.encoder(recipe, CPU)
    asked: list[object] = []
    encoder.text_encoder._pipeline.text_encoder_2.register_forward_hook(lambda *_: asked.append(1))
    encoder.texts(['a sign says "waves" in the sun'], [False])
    assert asked == []
