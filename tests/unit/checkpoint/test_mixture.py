"""A mixture is the sum of its metrics times their numbers; whoever lacks one of them is never the best."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelworks.core.errors import UserError
from reelworks.data.checkpoint import mixture
from reelworks.data.checkpoint.config import CheckpointsConfig, KeepBest
from reelworks.data.checkpoint.policy import PolicyTime, plan_retention

NAMES = st.from_regex(r"(samples|eval|vbench)/[a-z_][a-z0-9_.-]{0,12}[a-z0-9]", fullmatch=True)
NUMBERS = st.floats(0.001, 1000).map(lambda number: float(f"{number:.4g}"))
TERMS = st.dictionaries(NAMES, st.tuples(st.booleans(), NUMBERS), min_size=1, max_size=5)


@given(TERMS, st.sampled_from(["*", " * ", "* "]), st.data())
def test_a_written_mixture_is_read_as_it_was_meant(
    terms: dict[str, tuple[bool, float]], times: str, data: st.DataObject
) -> None:
    text = ""
    for name, (negative, number) in terms.items():
        sign = "-" if negative else "+" if text else ""
        text += f"{' ' if text else ''}{sign}{' ' if text else ''}{number:g}{times}{name}"
    weights = {name: -number if negative else number for name, (negative, number) in terms.items()}
    assert mixture.terms(text) == weights
    values = {name: data.draw(st.floats(-1e6, 1e6)) for name in terms}
    total = sum(weights[name] * value for name, value in values.items())
    assert mixture.value(values, text) == pytest.approx(total, rel=1e-9, abs=1e-9)
    lost = data.draw(st.sampled_from(sorted(terms)))
    assert mixture.value({**values, lost: math.nan}, text) is None
    assert mixture.missing({n: v for n, v in values.items() if n != lost}, text) == [lost]


@pytest.mark.parametrize(
    "text",
    [
        "0.7 *",
        "* eval/loss",
        "0.7 * eval/loss 0.3 * eval/motion",
        "0.7 * eval/loss + eval/motion",
        "eval/loss * 0.7",
        "0.7 * 0.3 * eval/loss",
        "0.7*a-0.3*b",
        "__import__('os') * 2",
        "0 * eval/loss",
        "1 * a - 1 * a",
        "1e400 * eval/loss",
    ],
)
def test_what_is_no_sum_of_numbers_times_names_is_refused(text: str) -> None:
    with pytest.raises(UserError) as refused:
        mixture.terms(text)
    assert refused.value.code == "mixture-invalid"
    with pytest.raises(ValueError, match="keep_best"):
        KeepBest(metric=text)


def test_a_name_without_a_star_is_one_metric_whatever_is_in_it() -> None:
    assert mixture.terms("my loss - ema") == {"my loss - ema": 1.0}
    assert mixture.parts({"a": 1.0}, "a") == ""


@dataclass(frozen=True)
class Record:
    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    pinned: bool = False
    created: float = 0.0
    num_bytes: int = 100
    stage: str = ""
    measured_on: dict[str, str] = field(default_factory=dict)


def test_the_best_by_a_mixture_stays_and_each_reason_has_the_parts() -> None:
    like, close = "eval/likeness-pixels", "eval/closeness-pixels"
    text = f"1 * {like} - 0.5 * {close}"
    measured = [(0.5, 0.2), (0.8, 0.4), (0.9, 1.8), (0.95, math.nan)]
    records = [Record(100 * i, {like: a, close: b}) for i, (a, b) in enumerate(measured, 1)] + [Record(500)]
    policy = CheckpointsConfig(keep_last=1, keep_best=KeepBest(metric=text, mode="max"))
    decisions = {d.step: d for d in plan_retention(records, policy, PolicyTime(0.0))}
    assert [step for step, d in decisions.items() if d.keep] == [200, 500]
    assert decisions[200].reasons == (f"the best by {text} (0.6: {like} 0.8, {close} 0.4)",)
    assert f"{close} 1.8" in decisions[300].reasons[1]
    assert decisions[400].reasons[1] == f"no finite {close}"
    lowest = CheckpointsConfig(keep_last=1, keep_best=KeepBest(metric=text, mode="min"))
    assert [d.step for d in plan_retention(records, lowest, PolicyTime(0.0)) if d.keep] == [300, 500]
