import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from refused import refused
from safetensors.torch import load_file
from scipy import stats

from reelworks.core import hash_rng
from reelworks.models.objectives import objectives, timesteps
from reelworks.models.objectives.config import ObjectiveConfig

GOLDEN = Path(__file__).parents[2] / "golden"
TIMES = json.loads((GOLDEN / "timesteps.json").read_text(encoding="utf-8"))
N = 200_000
# A picture of 117 × 312, Open-Sora's narrowest of 144p, by the function that made the golden tables (branch v1.2,
# bde3c420, torch 2.13.0 on a CPU). No ratio of the tables tells where bfloat16 rounds `ratio - 1`: below 0.5 it does.
NARROW = {
    "table_float32": [
        0.0, 0.373399, 3.755183, 39.812008, 110.627411, 271.755096, 528.189209, 770.562256, 973.64502, 997.32489,
    ],
    "table_bf16_inputs": [
        0.0, 0.37328, 3.753931, 39.791664, 110.53241, 271.306824, 526.654419, 767.410706, 968.698669, 992.14325,
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def uniform():
    return torch.from_numpy(hash_rng.uniform(hash_rng.hash64(7, np.arange(N), hash_rng.Purpose.TIMESTEP)))


@pytest.mark.parametrize(
    ("dtype", "golden", "tolerance"),
    [(torch.float32, "table_float32", 1e-2), (torch.bfloat16, "table_bf16_inputs", 5e-2)],
)
def test_the_shift_equals_the_reference_for_every_shape_and_time(dtype, golden, tolerance):
    """The ratio has the dtype of the sizes, timesteps have float32."""
    tensors = load_file(GOLDEN / "rflow.safetensors")
    rows = [*tensors["transform/rows_h_w_frames"], torch.tensor([117, 312, 1])]
    expected = torch.cat([tensors[f"transform/{golden}"], torch.tensor([NARROW[golden]])])
    t = tensors["transform/t"]
    shifted = [timesteps.shift(t, timesteps.compat_ratio(*row.to(dtype)[:, None])) for row in rows]
    torch.testing.assert_close(torch.stack(shifted), expected, rtol=0, atol=tolerance)


@given(height=st.integers(64, 4096), width=st.integers(64, 4096), num_frames=st.integers(1, 816))
@example(height=117, width=312, num_frames=1)
@example(height=125, width=291, num_frames=1)
def test_sizes_in_bfloat16_round_the_ratio_but_no_timestep(height, width, num_frames):
    """Numbers in float64, rounded wherever the reference has a bfloat16 tensor: up to `ratio - 1`, and not behind it."""
    sizes = torch.tensor([height, width, num_frames]).bfloat16()
    h, w, frames = sizes.tolist()
    latent_frames = 1.0 if num_frames == 1 else _bfloat16(frames // 17 * 5)
    space = _bfloat16(math.sqrt(_bfloat16(_bfloat16(h * w) / 512**2)))
    ratio = _bfloat16(space * _bfloat16(math.sqrt(latent_frames)))
    share = torch.tensor([0.0, 0.001, 0.25, 0.7777, 0.9, 0.999], dtype=torch.float64)
    expected = ratio * share / (1 + _bfloat16(ratio - 1) * share) * 1000
    shifted = timesteps.shift((share * 1000).float(), timesteps.compat_ratio(*sizes[:, None]))
    torch.testing.assert_close(shifted, expected.float(), rtol=0, atol=1e-2)


def _bfloat16(number: float) -> float:
    return torch.tensor(number, dtype=torch.float32).bfloat16().item()


@pytest.mark.parametrize("name", [n for n in TIMES["samplers"] if "discrete" not in n])
def test_the_density_equals_the_reference(name, uniform):
    kind, _, shape = name.split("|")
    t = timesteps.sample(uniform, ObjectiveConfig(timestep_sampling=kind))
    if shape != "None":
        height, width, num_frames = json.loads(shape)
        config = ObjectiveConfig(opensora_frame_quantization=True)
        size = {"height": height, "width": width, "num_frames": num_frames}
        t = timesteps.shift(t, timesteps.shift_ratio(config, latent_frames=-1, **size))
    level = torch.tensor(TIMES["quantile_levels"], dtype=torch.float64)
    quantile = torch.tensor(TIMES["samplers"][name]["quantiles"])
    below = torch.searchsorted(t.sort().values, quantile, right=True) / N
    # two samples of different size are compared: the variance is p(1-p)(1/N + 1/draws)
    tolerance = 5 * (level * (1 - level) * (1 / N + 1 / TIMES["draws"])).sqrt()
    assert ((below - level).abs() <= tolerance).all()


def test_extreme_draws_stay_finite_and_inside():
    edge = torch.tensor([0.0, 2.0**-53, 0.5, 1 - 2.0**-53, 1.0], dtype=torch.float64)
    for kind in ("logit-normal", "uniform", "mode", "beta"):
        t = timesteps.sample(edge, ObjectiveConfig(timestep_sampling=kind))
        assert t.dtype == torch.float32
        assert torch.isfinite(t).all()
        assert ((t > 0) & (t <= 1000)).all()
        assert t[2] == 500


def test_the_shift_by_true_latent_frames_has_no_hole_for_short_clips():
    auto, compat = ObjectiveConfig(), ObjectiveConfig(opensora_frame_quantization=True)
    size = {"height": 512, "width": 512, "num_frames": 16, "latent_frames": 4}
    assert timesteps.shift_ratio(compat, **size) == 0
    assert timesteps.shift_ratio(auto, **size) == pytest.approx(2)
    ratios = [timesteps.shift_ratio(auto, **(size | {"latent_frames": n})) for n in range(1, 60)]
    assert all(a < b for a, b in itertools.pairwise(ratios))


@pytest.mark.parametrize(
    ("height", "width", "frames", "area", "ratio"),
    [
        (256, 256, 1, None, 1.0),  # its lines go through 256 and 4096 tokens
        (1024, 1024, 1, None, 3.0),
        (256, 256, 33, None, math.sqrt(33)),
        (768, 768, 33, None, (1 + 2 * (2304 - 256) / 3840) * math.sqrt(33)),
        (768, 768, 32, 24 * 24, (1 + 2 * (144 - 256) / 3840) * math.sqrt(32)),  # an autoencoder of stride 32
    ],
)
def test_the_shift_of_open_sora_2(height, width, frames, area, ratio):
    """The ratio is linear in the tokens of a frame, of 2 x 2 latent elements, times the root of the latent frames."""
    config = ObjectiveConfig(timestep_shift="opensora-2.0")
    size = {"height": height, "width": width, "num_frames": 4 * frames, "latent_frames": frames, "latent_area": area}
    assert timesteps.shift_ratio(config, **size) == pytest.approx(ratio)


def test_the_shift_can_be_fixed_or_off():
    size = {"height": 720, "width": 1280, "num_frames": 51, "latent_frames": 15}
    assert timesteps.shift_ratio(ObjectiveConfig(timestep_shift="none"), **size) == 1
    assert timesteps.shift_ratio(ObjectiveConfig(timestep_shift=3.0), **size) == 3
    expected = math.sqrt(720 * 1280 / 512**2) * math.sqrt(15)
    assert timesteps.shift_ratio(ObjectiveConfig(), **size) == pytest.approx(expected)


@pytest.mark.parametrize("ratio", [0.0, 0.2, 1.0, 7.0])
def test_clean_and_noise_are_fixed_points_of_every_shift(ratio):
    t = torch.tensor([0.0, 500.0, 1000.0])
    shifted = timesteps.shift(t, ratio)
    assert shifted[0] == 0
    assert shifted[2] == 1000
    assert shifted[1] == pytest.approx(1000 * ratio / (1 + ratio))


def test_a_draw_does_not_depend_on_its_neighbours(uniform):
    together = timesteps.sample(uniform[:64], ObjectiveConfig())
    alone = torch.cat([timesteps.sample(u[None], ObjectiveConfig()) for u in uniform[:64]])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("kind", ["logit-normal", "uniform", "mode", "beta"])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 6.0])
def test_a_range_keeps_the_density_within_it(kind, ratio):
    """Timesteps of two ranges that meet are, in their shares, those of no range; each stays within its own."""
    u = torch.arange(0.5, 4000, dtype=torch.float64) / 4000
    shares = timesteps.share_below(875, ObjectiveConfig(timestep_sampling=kind), ratio)
    made = []
    for low, high in ((0.0, 875.0), (875.0, 1000.0)):
        config = ObjectiveConfig(timestep_sampling=kind, timestep_range=[low, high])
        _, t = objectives.from_config(config).times(u, ratio)
        assert (t >= low - 1e-3).all()
        assert (t <= high + 1e-3).all()
        made.append(t)
    _, whole = objectives.from_config(ObjectiveConfig(timestep_sampling=kind)).times(u, ratio)
    assert (whole < 875).double().mean() == pytest.approx(shares, abs=1e-3)
    quantiles = torch.tensor([0.1, 0.5, 0.9])
    below = torch.quantile(whole[whole < 875], quantiles)
    torch.testing.assert_close(torch.quantile(made[0], quantiles), below, rtol=0.01, atol=1.0)


def test_a_range_without_width_is_refused():
    """Ends the wrong way round, or outside, are told."""
    for ends in ([900.0, 100.0], [-1.0, 5.0], [0.0, 1001.0]):
        with refused("timestep-range-invalid", "timestep_range"):
            ObjectiveConfig(timestep_range=ends)


@pytest.mark.parametrize(("mean", "std"), [(-1.0, 0.5), (0.0, 1.0), (1.5, 2.0)])
@pytest.mark.parametrize("ratio", [1.0, 4.0])
def test_the_logit_of_a_timestep_has_the_mean_and_deviation_asked_for(mean, std, ratio):
    u = torch.arange(0.5, 20000, dtype=torch.float64) / 20000
    config = ObjectiveConfig(logit_mean=mean, logit_std=std, timestep_shift=ratio)
    before, after = objectives.from_config(config).times(u, ratio)
    logit = torch.logit(before.double() / 1000)
    assert logit.mean().item() == pytest.approx(mean, abs=1e-3)
    assert logit.std().item() == pytest.approx(std, rel=1e-2)
    for t in (100.0, 500.0, 875.0):
        share = timesteps.share_below(t, config, ratio)
        assert (after < t).double().mean().item() == pytest.approx(share, abs=1e-3)


def _analytic(config: ObjectiveConfig):
    """The distribution function of a density, as a function of the share of noise."""
    if config.timestep_sampling == "beta":
        return stats.beta(config.beta_alpha, config.beta_beta).cdf
    # f(u) = 1 − u − s · (cos²(π·u/2) − 1 + u) falls in u, so f(U) lies below f(u) with the probability 1 − u.
    u = np.linspace(1, 0, 200_001)
    at = 1 - u - config.mode_scale * (np.cos(np.pi * u / 2) ** 2 - 1 + u)
    return lambda x: np.interp(x, at, 1 - u)


@pytest.mark.parametrize(
    "settings",
    [
        *({"timestep_sampling": "mode", "mode_scale": scale} for scale in (-1.0, -0.4, 0.0, 1.29, 1.75)),
        *({"timestep_sampling": "beta", "beta_alpha": a, "beta_beta": b} for a, b in ((0.5, 0.5), (1.5, 1.0), (2, 9))),
    ],
)
def test_drawn_timesteps_have_the_density_of_their_name(settings, uniform):
    config = ObjectiveConfig(**settings)
    t = timesteps.sample(uniform[:20_000], config).double().numpy() / 1000
    assert stats.kstest(t, _analytic(config)).pvalue > 1e-3


@given(
    settings=st.one_of(
        st.fixed_dictionaries({"timestep_sampling": st.just("mode"), "mode_scale": st.floats(-1, 1.75)}),
        st.fixed_dictionaries(
            {"timestep_sampling": st.just("beta"), "beta_alpha": st.sampled_from([0.5, 0.6, 1, 3, 50]),
             "beta_beta": st.sampled_from([0.5, 1.3, 7])}
        ),
    ),
    draw=st.floats(0.001, 0.999),
    ratio=st.floats(0.2, 8),
)  # fmt: skip
def test_the_share_below_a_timestep_is_the_draw_that_gives_it(settings, draw, ratio):
    config = ObjectiveConfig(**settings)
    drawn = torch.tensor([draw, draw + 5e-4], dtype=torch.float64)
    t = timesteps.shift(timesteps.sample(drawn, config), ratio)
    assert t[0] <= t[1]
    near = [timesteps.share_below(float(t[0]) + change, config, ratio) for change in (-1e-3, 1e-3)]
    assert near[0] - 1e-6 <= draw <= near[1] + 1e-6


@pytest.mark.parametrize("shift", [0.3, 1.0, 3.0, 7.3])
@pytest.mark.parametrize(("first", "last"), [(0.0, 400.0), (100.0, 875.0), (875.0, 1000.0)])
def test_the_end_of_a_range_belongs_to_the_range_behind_it(first: float, last: float, shift: float) -> None:
    """Which another network may train: the largest draws are below it, but for pure noise."""
    draws = torch.tensor([0.0, 0.5, 1 - 2.0**-24, 1 - 2.0**-53], dtype=torch.float64)
    _, t = objectives.RectifiedFlow(timestep_range=[first, last], timestep_sampling="uniform").times(draws, shift)
    assert bool((t >= first).all())
    assert bool((t < last).all()) or last == 1000.0
    assert float(t[-1]) == pytest.approx(last)
