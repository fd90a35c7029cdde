"""Wan 2.2's two experts: a recipe names them, their weights and timesteps follow, and each clip goes to its own."""

import dataclasses

import numpy as np
import pytest
import tiny_families
import tiny_recipe
import torch
from refused import refused

from reelworks.core.errors import UserError
from reelworks.core.shape import Shape
from reelworks.testing import contract
from reelworks.training.assembly import build
from reelworks.training.recipe import recipe_file

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tiny_families.write("wan-2.2-tiny", tmp_path_factory.mktemp("wan-2.2"))


def recipe_of(place, **tables):
    values = tiny_families.recipe_of("wan-2.2-tiny", place)
    for key, changes in tables.items():
        values[key] = {**values.get(key, {}), **changes}
    return recipe_file.parse(
        tiny_recipe.least(
            bucket=[{"resolution": "32px", "num_frames": 1, "batch_size": 1}], precision={"compute": "float32"}
        )
        | values
    )


def test_each_clip_goes_to_the_expert_of_its_timestep(place):
    """Of a mixed batch every clip gets what its expert alone answers, in its place; the boundary is the first's."""
    both, high, low = (
        build.denoiser(recipe_of(place, model={"experts": name}), CPU) for name in ("both", "high", "low")
    )
    inputs = contract.example(Shape(1, 4, 4), "wan-2.2-tiny", batch=5)
    inputs = dataclasses.replace(
        inputs,
        latent=torch.randn(5, 16, 1, 4, 4, generator=torch.Generator().manual_seed(0)),
        time=torch.tensor([100.0, 875.0, 874.9, 999.0, 300.0]),
    )
    with torch.no_grad():
        answers = both.predict(inputs)
        of_high, of_low = high.predict(inputs), low.predict(inputs)
    first = torch.tensor([False, True, False, True, False])
    torch.testing.assert_close(answers[first], of_high[first])
    torch.testing.assert_close(answers[~first], of_low[~first])
    assert not torch.allclose(of_high, of_low, atol=0.01)


def test_timesteps_follow_from_the_expert(place):
    """A recipe says the expert once; the resolved recipe holds its timesteps, and reads as itself.

    Validation is at timesteps that are trained, in equal distances from each other and twice as far as from the ends.
    """
    ranges = {"high": [875.0, 1000.0], "low": [0.0, 875.0], "both": [0.0, 1000.0]}
    for name, wanted in ranges.items():
        recipe = recipe_of(place, model={"experts": name})
        assert recipe.objective.timestep_range == wanted
        assert recipe_file.parse(recipe.model_dump()) == recipe
        ends = [wanted[0], *recipe.validation_timesteps, wanted[1]]
        np.testing.assert_allclose(np.diff(ends) / (wanted[1] - wanted[0]), [0.1, 0.2, 0.2, 0.2, 0.2, 0.1])


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({}, r"model\.experts.*two networks|two networks.*model\.experts"),
        ({"model": {"experts": "high"}, "objective": {"timestep_range": [0, 875]}}, r"timestep_range"),
        ({"model": {"experts": "high", "weights": "x/transformer_2"}}, r"model\.weights"),
        ({"model": {"experts": "both", "weights": "x/transformer"}}, r"model\.weights"),
        ({"model": {"experts": "low", "weights": None}, "objective": {"name": "iddpm"}}, r"rectified"),
        ({"model": {"name": "wan-tiny", "experts": "low"}}, r"model\.experts.*leave it out"),
        ({"model": {"experts": "both"}, "lora": {"weights": "one.safetensors"}}, r"lora\.weights"),
    ],
)
def test_what_would_not_fit_together_is_refused(place, tables, told):
    """Neither the wrong half of the timesteps nor the wrong folder can be combined with an expert."""
    with pytest.raises(UserError, match=rf"(?s){told}"):
        recipe_of(place, **tables)


def test_a_file_of_one_expert_stays_alone_wherever_home_is(place, monkeypatch):
    """Its path may begin with the home folder: it is not read again as the other expert."""
    monkeypatch.setenv("HOME", str(place.parent))
    file = f"~/{place.name}/transformer/diffusion_pytorch_model.safetensors"
    recipe = recipe_of(place, model={"weights": file, "experts": "high"})
    denoiser = build.denoiser(recipe, CPU)
    assert build.with_other_network(recipe, denoiser, CPU) is denoiser
    pair = recipe_of(place, model={"weights": f"~/{place.name}", "experts": "high"})
    assert build.with_other_network(pair, build.denoiser(pair, CPU), CPU).module is not denoiser.module


def test_one_network_is_not_taken_for_two(place):
    """A single file cannot be the weights of both."""
    (file,) = (place / "transformer").glob("*.safetensors")
    with refused("expert-missing", "model.weights"):
        build.denoiser(recipe_of(place, model={"experts": "both", "weights": str(file)}), CPU)
