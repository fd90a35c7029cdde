import subprocess
import sys

import pytest
from pydantic import ValidationError

from reelworks.models.objectives.config import ObjectiveConfig


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"mask_ratios": {"image_haed": 0.1}}, ["image_haed", 'did you mean "image_head"?']),
        ({"mask_ratios": {"random": -0.1}}, ["objective.mask_ratios.random", "-0.1"]),
        ({"mask_ratios": {"random": 0.6, "image_head": 0.6}}, ["sum to 1.2", "remedy"]),
        ({"mask_ratios": {"identity": 0.5, "random": 0.2}}, ["sum to 0.7", 'leave "identity" out']),
        ({"timestep_shift": 0.0}, ["objective.timestep_shift = 0.0", "remedy"]),
        ({"timestep_shift": "automatic"}, ["timestep_shift"]),
        ({"caption_dropout": 1.5}, ["caption_dropout"]),
        ({"snr_gamma": 4.0}, ["objective.snr_gamma = 4.0", 'loss_weighting = "min-snr"']),
        ({"huber_schedule": "exponential"}, ["no effect with loss", '"huber" or "smooth-l1"']),
        ({"mode_scale": 1.0, "timestep_sampling": "beta"}, ["objective.mode_scale", '"mode"']),
        ({"mode_scale": 2.0, "timestep_sampling": "mode"}, ["mode_scale", "1.75"]),
        ({"name": "epsilon", "loss_weighting": "cosmap"}, ["loss_weighting = 'cosmap'", "min-snr"]),
        ({"name": "iddpm", "loss": "huber"}, ["objective.loss = 'huber'", "remedy"]),
        ({"name": "iddpm", "loss_weighting": "min-snr"}, ["loss_weighting = 'min-snr'", "remedy"]),
        ({"name": "iddpm", "noise_offset": 0.1}, ["objective.noise_offset = 0.1", "leave it out"]),
        ({"multires_noise_iterations": 6}, ["multires_noise_iterations = 6", '"epsilon" and "v-prediction"']),
        ({"noise_offset": 0.1, "adaptive_noise_scale": 0.1}, ["adaptive_noise_scale = 0.1", "rectified-flow"]),
        ({"name": "epsilon", "noise_offset": -0.1}, ["noise_offset"]),
        ({"name": "epsilon", "noise_offset_random_strength": True}, ["no effect with noise_offset = 0.0", "remedy"]),
        ({"name": "epsilon", "multires_noise_discount": 0.5}, ["no effect with multires_noise_iterations = 0"]),
        ({"name": "epsilon", "timestep_sampling": "beta"}, ["timestep_sampling = 'beta'", "rectified flow"]),
    ],
)
def test_a_wrong_value_is_named_with_its_remedy(values, words):
    with pytest.raises(ValidationError) as caught:
        ObjectiveConfig.model_validate(values)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"timestep_shift": 2.5, "timestep_sampling": "uniform", "opensora_frame_quantization": True},
        {"mask_ratios": {"identity": 0.7, "random": 0.1, "intepolate": 0.2}},
        {"mask_ratios": {"random": 0.1, "image_head": 0.2}},
        {"noise_offset": 0.05, "noise_offset_probability": 0.5, "input_perturbation": 0.1},
        {"name": "v-prediction", "noise_offset": 0.05, "adaptive_noise_scale": 0.1, "multires_noise_iterations": 8},
    ],
)
def test_good_values_pass(values):
    assert ObjectiveConfig.model_validate(values).model_dump(include=set(values)) == values


def test_the_config_needs_no_torch():
    code = "import sys, reelworks.models.objectives.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
