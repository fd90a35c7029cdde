"""The Python that a model card shows calls the pipeline of its family as this program does."""

from __future__ import annotations

import inspect

import diffusers
import pytest
import tiny_recipe

from reelworks.annexes.hub.card import Card, Trained
from reelworks.core.shape import Shape
from reelworks.models import components, registry
from reelworks.models.family import SamplingDefaults
from reelworks.training.recipe import recipe_file


def card_of(name: str, scale: float, **changes: object) -> Card:
    """Return the card of a LoRA on a model that is drawn with a guidance scale."""
    values = {"model": {"name": name}, "lora": {"rank": 2}} | changes
    recipe = recipe_file.parse(tiny_recipe.least(**values))
    pictures = components.family_config(recipe.model).pictures_only
    trained = Trained(1, 0, 1, 1.0, "cpu", 1, {})
    files, shape = [("lora.safetensors", "diffusers")], Shape(1 if pictures else 17, 64, 64)
    return Card(
        "a/b", "run", recipe, "c/d", None, None, files, [], None, trained, None, shape, SamplingDefaults(scale, 9), 12.0
    )


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("wan-tiny", {"guidance_scale": 3.0, "num_frames": 17}),
        ("ltx-tiny", {"guidance_scale": 3.0, "num_frames": 17, "frame_rate": 12.0}),
        ("flux-tiny", {"guidance_scale": 3.0}),
        ("z-image-tiny", {"guidance_scale": 2.0}),  # which its pipeline counts from 0
        ("krea2-tiny", {"guidance_scale": 2.0}),
        ("qwen-image-tiny", {"true_cfg_scale": 3.0, "negative_prompt": ""}),  # without which it takes no second pass
        ("hunyuan-image-2.1-tiny", {}),  # which has a guider of its own
        ("hunyuan-video-1.5-tiny", {"num_frames": 17}),
        ("sana-video-tiny", {"guidance_scale": 3.0, "frames": 17, "use_resolution_binning": False}),
    ],
)
def test_the_call_is_one_that_the_pipeline_takes_and_means_the_same(name, wanted):
    """Guidance and frames have other names and meanings in some pipelines, which is what a stranger runs."""
    card = card_of(name, 3.0)
    kind = getattr(diffusers, registry.TEXT_ENCODERS[registry.PRESETS[name].parts.text].pipeline)
    assert card.call == wanted | {"num_inference_steps": 9, "height": 64, "width": 64}
    assert card.call.keys() <= inspect.signature(kind.__call__).parameters.keys()
    assert f"settings = {card.call}\nresult = pipeline(prompt, **settings)" in card.to_text()


def test_a_network_without_a_pipeline_has_no_example():
    """Its captions are embedded by another family's pipeline, which cannot draw with it."""
    card = card_of("opensora2-tiny", 7.5)
    assert card.pipeline is None
    assert "```python" not in card.to_text()
