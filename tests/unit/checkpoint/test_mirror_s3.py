"""The mirror on a real S3 server: what is told of a folder holds for a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import s3_server
from mirror_helpers import copy, logged, new_run, shown
from refused import refused

from reelworks.core import retry
from reelworks.data.checkpoint.config import MirrorConfig
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.mirror import fetch, mirror
from reelworks.data.checkpoint.mirror.remote import RemoteFilesystem
from reelworks.data.checkpoint.verify import verify
from reelworks.data.run.folder import RunFolder


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server.serve() as address:
        yield address


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_server.CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def lines() -> Iterator[list[str]]:
    with logged() as lines:
        yield lines


def place_in(bucket: str, endpoint: str) -> RemoteFilesystem:
    return RemoteFilesystem.open(MirrorConfig(url=f"s3://{bucket}/runs/first", options={"endpoint_url": endpoint}))


@pytest.mark.slow
def test_a_run_survives_the_loss_of_its_disk(tmp_path: Path, endpoint: str, lines: list[str]) -> None:
    """Mirrored to a bucket, retired there by the policy, brought back whole into an empty folder."""
    place = place_in("bucket", endpoint)
    place._fs.mkdir("bucket")
    run = new_run(tmp_path / "run", 100, 200, 300, 400)
    (run.checkpoints_folder / "pins/step-000000100").unlink()
    told = copy(run, place, 100, 200, 300, 400, keep_last=2)
    assert told.kinds().count("mirrored") == 4
    assert place.steps() == shown(place) == [300, 400]
    place.remove_file("checkpoints/step-000000400/manifest.json")  # as of an upload that broke off

    run, again = RunFolder(run.path.rename(tmp_path / "lost")), RunFolder(tmp_path / "new" / "run")
    assert fetch.bring_back(place, again, "auto") == 300
    assert CheckpointFolder(again.checkpoints_folder).steps() == [300]
    verify(again.checkpoints_folder / "step-000000300", full=True)
    assert again.info().id == run.info().id
    assert again.events_file.read_bytes() == run.events_file.read_bytes()
    assert fetch.bring_back(place, again, "auto") is None
    copy(again, place, 300)
    assert s3_server.SECRET not in repr((told, lines)) + again.events_file.read_text(encoding="utf-8")


def test_a_bucket_that_is_not_there_or_a_server_that_is_gone_is_told(
    tmp_path: Path, endpoint: str, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "WAITS_SECONDS", ())
    monkeypatch.setattr(mirror, "WAITS_SECONDS", ())
    nothing = RunFolder(tmp_path / "run")
    with refused("mirror-unreachable", "checkpoints.mirror.url", says="cannot be written now") as caught:
        fetch.bring_back(place_in("no-bucket", endpoint), nothing, "auto")
    assert "bucket does not exist" in caught.value.problem
    assert not nothing.path.exists()

    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    gone = place_in("bucket", "http://127.0.0.1:1")
    gone._fs.retries = 1
    told = copy(new_run(tmp_path / "full", 100), gone, 100)
    assert told.kinds() == ["unmirrored"]
    assert "127.0.0.1:1" in lines[-1]
    assert s3_server.SECRET not in repr((told, lines))
