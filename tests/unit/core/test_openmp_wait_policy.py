"""Threads sleep while they wait where a machine is busy, unless somebody chose otherwise."""

from __future__ import annotations

import pytest

from reelworks.core import gpu_devices, openmp_wait_policy


@pytest.mark.parametrize(
    ("load", "before", "after"),
    [
        (0.2, {}, {}),
        (4.0, {}, {"OMP_WAIT_POLICY": "passive"}),
        (4.0, {"OMP_WAIT_POLICY": "active"}, {"OMP_WAIT_POLICY": "active"}),
        (4.0, {"GOMP_SPINCOUNT": "1000"}, {"GOMP_SPINCOUNT": "1000"}),
    ],
)
def test_the_load_decides_where_nobody_has(load, before, after, monkeypatch):
    monkeypatch.setattr(openmp_wait_policy.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(openmp_wait_policy.cores, "count", lambda: 4)
    monkeypatch.setattr(gpu_devices, "_FILES", ())
    environment = dict(before)
    openmp_wait_policy.choose(environment)
    assert environment == after


def test_a_gpu_makes_no_choice_needed(monkeypatch, tmp_path):
    monkeypatch.setattr(openmp_wait_policy.os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    monkeypatch.setattr(gpu_devices, "_FILES", (str(tmp_path),))
    openmp_wait_policy.choose(environment := {})
    assert environment == {}


def test_ones_own_threads_are_no_others(monkeypatch):
    monkeypatch.setattr(openmp_wait_policy.os, "getloadavg", lambda: (4.0, 0.0, 0.0))
    monkeypatch.setattr(openmp_wait_policy.cores, "count", lambda: 4)
    assert openmp_wait_policy.is_busy()
    assert not openmp_wait_policy.is_busy(own_threads=4)
