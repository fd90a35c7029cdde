"""Actors of a cluster that die are begun again, and a part that always kills them ends the command."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import prepare_files
import pytest
import torch
from refused import refused

from reelworks.core.executors import Actor
from reelworks.training.encoding.encode_worker import EncodeWorker, Progress
from reelworks.training.plan import plan_forecast
from reelworks.training.precompute import encode_on_cluster, encoding
from reelworks.training.precompute.encode_on_cluster import TRIES, ClusterJob, ClusterPart, EncodeActor


class DiedError(BaseException):
    """The process of an actor has ended."""


class Here:
    """An engine whose actors work in this process; each that dies is followed by a new one, which gets the same part."""

    uses_gpus = False

    def run_actors(self, actor: Callable[[ClusterJob], Actor], job: ClusterJob, parts: Sequence[str]) -> Iterator[str]:
        for part in parts:
            done = None
            while done is None:
                try:
                    done = actor(job)(part)
                except DiedError:
                    continue
            yield done


@pytest.mark.parametrize("deaths", [TRIES - 1, TRIES])
def test_a_part_may_kill_all_but_the_last_of_its_actors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    for i in range(3):
        prepare_files.picture(tmp_path / "data" / f"{i}.png", grey=i)
    data = prepare_files.opened(prepare_files.recipe(tmp_path, encode={"store": True}))
    begun, encode_clips = [], EncodeWorker.encode_clips

    def die(worker: EncodeWorker, *given: Any) -> None:
        begun.append(1)
        if len(begun) <= deaths:
            raise DiedError
        encode_clips(worker, *given)

    monkeypatch.setattr(EncodeWorker, "encode_clips", die)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # this process has other work

    def encode() -> Progress:
        source = encoding.open_store(data)
        job = encoding.build_encoding_job(data, source, torch.device("cpu"), plan_forecast.plan_spec(data))
        return encode_on_cluster.encode_missing(data, job, Here(), limit=None, on_progress=lambda _: None)[1]

    if deaths < TRIES:
        assert encode().done == 3
    else:
        with refused("encode-actor-died", "--engine", says=f"ended {TRIES} times while it encoded chunk 0"):
            encode()
    assert not list((Path(data.recipe.encoded_folder) / "cluster").iterdir())


def test_tries_of_a_command_that_runs_stay_and_those_of_one_that_was_killed_go(tmp_path: Path) -> None:
    running, killed = (tmp_path / "cluster" / name for name in ("running", "killed"))
    for folder in (running, killed):
        folder.mkdir(parents=True)
    os.utime(killed, (0, 0))
    with encode_on_cluster._tries(tmp_path) as mine:
        assert {*mine.parent.iterdir()} == {running, mine}
    assert [*running.parent.iterdir()] == [running]


@pytest.mark.parametrize("names", [[], ["another"]])
def test_a_chunk_of_another_catalog_is_not_encoded(tmp_path: Path, names: list[str]) -> None:
    recipe = SimpleNamespace(catalog_folder="there")
    job: Any = SimpleNamespace(recipe=recipe, tries=str(tmp_path), most_tries=TRIES)
    actor, opened = EncodeActor(job), SimpleNamespace(chunks=[SimpleNamespace(name=name) for name in names])
    actor._opened = opened, SimpleNamespace()  # type: ignore[assignment]
    told = json.loads(actor(json.dumps(asdict(ClusterPart(number=0, name="asked-for", clips=2)))))["error"]
    assert (told["code"], told["field"], told["value"]) == ("node-lacks-folder", "catalog", "there")
    assert "sees another catalog" in told["problem"]
