"""Throughput and waiting have one definition, and all who tell them tell the same."""

from __future__ import annotations

import json

import fabricate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reelworks.annexes.page.event_index import EventIndex
from reelworks.data.run.folder import RunFolder
from reelworks.reports import compare, plots, run_data, run_facts
from reelworks.training.coverage import speed

_STEPS = st.builds(
    lambda seconds, share, **others: {
        **others,
        "seconds": seconds,
        "data_wait_seconds": None if share is None else share * seconds,
    },
    seconds=st.floats(1e-3, 1e3),
    share=st.none() | st.floats(0, 1),
    clips=st.integers(0, 64),
    applied=st.booleans(),
)


@given(st.lists(_STEPS, max_size=20))
def test_shares_lie_between_0_and_1_and_steps_that_were_not_applied_count_no_clips(steps):
    total = speed.total(map(speed.of_step, steps))
    assert total.clips == sum(step["clips"] for step in steps if step["applied"])
    assert all(0 <= speed.of_step(step).waited_share <= 1 for step in steps)
    if not steps:
        assert (total.waited_share, total.clips_per_second, total.advice) == (None, None, "")
        return
    assert 0 <= total.waited_share <= 1 + 1e-9
    assert total.clips_per_second == pytest.approx(total.clips / sum(step["seconds"] for step in steps))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with a crash, a resume, and steps that were not applied."""
    run = fabricate.make(tmp_path_factory.mktemp("speed") / "run", steps=60, every=20, crash_at=35)
    events = [json.loads(line) for line in run.events_file.read_text(encoding="utf-8").splitlines()]
    for event in events:
        if event["kind"] == "step" and event["step"] % 7 == 0:
            event |= {"applied": False, "data_wait_seconds": event["seconds"]}
    run.events_file.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    return RunFolder(run.path)


def test_report_page_comparison_and_curves_tell_the_same(run):
    data, index = run_data.load(run), EventIndex(run.events_file)
    index.update()
    steps = data.events_of("step")
    clips, seconds = sum(e["clips"] for e in steps if e["applied"]), sum(e["seconds"] for e in steps)
    assert index.speed() == pytest.approx(data.speed)
    assert data.speed[:2] == pytest.approx((clips, seconds))

    facts = {fact.label: fact.value for fact in run_facts.headline(data)}
    (rows,) = ({row.label: row.values[0] for row in found.result_rows} for found in [compare.compare([run])])
    assert facts["Throughput"] == f"{clips / seconds:,.3g} clips / s"
    assert rows["clips a second"] == f"{clips / seconds:.3g}"
    assert rows["waiting for clips"] == facts["Waiting for clips"]

    figures = {figure.name: figure.plot["data"][0] for figure in plots.all_of(data)}
    by_step = {step["step"]: step["seconds"] for step in steps}
    drawn = figures["throughput"]
    assert sum(y * by_step[x] for x, y in zip(drawn["x"], drawn["y"], strict=True)) == pytest.approx(clips)
    assert max(figures["data-wait"]["y"]) == 1
