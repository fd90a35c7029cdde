"""Measures without processes, and classes of measures that are forgotten after each test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reelworks.annexes.quality import registry, sampling
from reelworks.core import executors
from reelworks.core.worker_pool import ThreadCalls
from reelworks.data.catalog.store import measured_columns


@pytest.fixture(autouse=True)
def _forgets_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_MEASURES", replace(registry._MEASURES, by_name=dict(registry._MEASURES.by_name)))
    monkeypatch.setattr(measured_columns, "_COLUMNS", dict(measured_columns._COLUMNS))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Decode in threads of this process, and return the names of the files."""
    names: list[str] = []
    real = sampling.measure

    def counted(request: sampling.MeasureRequest) -> sampling.Measurement:
        names.append(request.clip.path.name)
        return real(request)

    monkeypatch.setattr(executors, "WorkerPool", ThreadCalls)
    monkeypatch.setattr(sampling, "measure", counted)
    return names
