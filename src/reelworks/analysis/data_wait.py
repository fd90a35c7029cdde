"""Advice on a run whose steps wait for data."""

from __future__ import annotations

from reelworks.core import units

TOLERATED_SHARE = 0.2  # of the time of a step


def advice(wait_seconds: float, seconds: float) -> str:
    """Return what to change if training waited for clips for too much of its time, else ""."""
    if wait_seconds <= TOLERATED_SHARE * seconds:
        return ""
    return (
        f"training waited for clips for {units.percent(wait_seconds / seconds)} of its time: raise data.num_workers while "
        "cores are idle; if decode_p99_seconds is many times decode_p50_seconds in events.jsonl, raise data.prefetch_bytes; "
        "else lower data.fps, or use smaller files"
    )
