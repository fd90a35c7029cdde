"""Planted slips are of the program as it is, and the drill tells those that tests notice from those that they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drills import planted


def test_each_slip_is_of_the_program_as_it_is() -> None:
    """Whoever changes the line of one changes the slip, or leaves it out."""
    assert [f"{fault.module}: {fault.effect}" for fault in planted.faults() if fault.is_stale] == []
    assert all(fault.tests and fault.before != fault.after for fault in planted.faults())


@pytest.mark.slow
def test_a_slip_counts_as_noticed_by_tests_that_fail_for_it_alone() -> None:
    fault = next(fault for fault in planted.faults() if fault.module == "core/units.py")
    assert not planted.is_noticed(fault.tests, None, 1)
    assert planted.outcome(fault, whole=False, processes=1) == "noticed"
    harmless = replace(fault, after=f"{fault.before}  # the same")
    assert planted.outcome(harmless, whole=False, processes=1) == "not noticed"
    assert planted.outcome(replace(fault, before="no such text"), whole=False, processes=1) == "stale"
