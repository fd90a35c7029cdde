"""What a micro-batch costs: measured where it was, else a formula on the same scale; whole microseconds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from pydantic import ValidationError
from refused import refused

from reelworks.data.schedule import cost
from reelworks.data.schedule.cost import CostConfig
from reelworks.data.schedule.cost_fit import BatchTime
from reelworks.data.schedule.plan import PlanSpec

NAMES = ["small", "medium", "large"]
TOKENS = np.array([10, 100, 1000])


def costs_us(
    names: list[str], tokens: np.ndarray, config: CostConfig, ms_per_clip: Mapping[str, float]
) -> tuple[int, ...]:
    """Costs of clips, whose micro-batches cost nothing besides."""
    measured = {name: BatchTime(0.0, ms) for name, ms in ms_per_clip.items()}
    per_clip, per_batch = cost.costs_us(names, tokens, config, measured)
    assert per_batch == ()
    return per_clip


@pytest.mark.parametrize("unit", [1e-6, 1e-3, 1.0, 1e3])
def test_a_micro_batch_of_any_size_costs_what_it_was_measured_to_take(unit: float) -> None:
    """In seconds, too, whatever unit the costs have. A bucket without a time costs besides what the others do in the middle."""
    times = {"small": BatchTime(14 * unit, 0.9 * unit), "medium": BatchTime(20 * unit, 9 * unit)}
    per_clip, per_batch = cost.costs_us(NAMES, TOKENS, CostConfig(), times)
    spec = PlanSpec(0, 1, 1, "partial", (8, 8, 8), per_clip, "", batch_costs_us=per_batch)
    seconds = cost.unit_seconds(NAMES, times, spec)
    assert seconds is not None
    times["large"] = BatchTime(17 * unit, 90 * unit)
    for clips in (1, 2, 8):
        found = spec.costs(np.arange(3), np.full(3, clips)) * seconds
        assert found.tolist() == pytest.approx([times[name].milliseconds(clips) / 1000 for name in NAMES], rel=0.01)


def test_by_default_a_token_costs_a_microsecond() -> None:
    assert costs_us(NAMES, TOKENS, CostConfig(), {}) == (10, 100, 1000)


def test_the_formula_adds_a_part_per_clip_per_token_and_per_pair_of_tokens() -> None:
    config = CostConfig(per_clip_us=5, per_token_us=2, per_token_squared_us=0.5)
    assert costs_us(NAMES, TOKENS, config, {}) == (5 + 20 + 50, 5 + 200 + 5000, 5 + 2000 + 500_000)


def test_measured_costs_rule_and_scale_the_formula_for_the_others() -> None:
    costs = costs_us(NAMES, TOKENS, CostConfig(), {"small": 0.05, "large": 3.0, "gone": 7.0})
    assert costs == (50, 400, 3000)  # 5 and 3 microseconds a token where measured: 4 between them


def test_one_measurement_that_is_off_moves_no_other_bucket() -> None:
    """As of a bucket that was measured while other programs were running."""
    names, measured_ms = [*NAMES, "larger"], {"small": 0.05, "medium": 0.5, "larger": 10_000.0}
    assert costs_us(names, np.array([*TOKENS, 2000]), CostConfig(), measured_ms) == (50, 500, 5000, 10_000_000)


@pytest.mark.parametrize("unit", [1e-9, 1e-4, 0.3, 1.0, 1e5])
@pytest.mark.parametrize("measured_ms", [{}, {"medium": 7.0}])
def test_only_ratios_between_buckets_matter(unit: float, measured_ms: dict[str, float]) -> None:
    """In whatever unit costs are given, their ratios are those of the formula within a hundredth."""
    small, medium, large = costs_us(
        NAMES, TOKENS, CostConfig(per_token_us=unit), {k: unit * v for k, v in measured_ms.items()}
    )
    assert medium / small == pytest.approx(10, rel=0.01)
    assert large / medium == pytest.approx(10, rel=0.01)


def test_a_cost_is_the_nearest_whole_number() -> None:
    assert costs_us(NAMES[:2], TOKENS[:2], CostConfig(), dict(zip(NAMES, (0.1507, 0.2003), strict=False))) == (151, 200)


def test_nothing_is_free() -> None:
    """What differs by more than numbers can hold costs at least one."""
    assert costs_us(NAMES, TOKENS, CostConfig(), {"small": 1e-20, "large": 1e7})[0] == 1


def test_a_bucket_without_a_time_costs_by_its_size_where_clips_were_measured_to_cost_nothing() -> None:
    times = {"small": BatchTime(20.0, 0.0).through(8, 20.0)}
    assert times["small"].milliseconds(8) == pytest.approx(20)
    per_clip, _ = cost.costs_us(NAMES, TOKENS, CostConfig(), times)
    assert per_clip == (25, 250, 2500)


@pytest.mark.parametrize("values", [{"per_token_us": 1e8}, {"per_token_squared_us": 1e308}])
def test_a_clip_that_would_take_longer_than_a_day_is_refused(values: dict[str, float]) -> None:
    with refused("cost-too-large", "cost") as caught:
        costs_us(NAMES, TOKENS, CostConfig.model_validate(values), {})
    assert caught.value.field == "cost"
    assert caught.value.remedy


@pytest.mark.parametrize(
    "values", [{"per_token_us": 0}, {"per_token_us": -1}, {"per_clip_us": float("nan")}, {"measured": ""}]
)
def test_costs_that_cannot_be_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        CostConfig.model_validate(values)
