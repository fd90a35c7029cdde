"""What the hub answers, by a server on this machine that speaks as it does: sizes are told, refusals are explained."""

from __future__ import annotations

import json
import logging
import sys

import fake_hub
import pytest
from huggingface_hub import constants, utils
from refused import refused

from reelworks.core import optional_imports
from reelworks.models import hub
from reelworks.models.storage import weights

FILE = json.dumps({"numbers": list(range(200))}).encode()


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A hub with two commits of a repository, the first of which has a name, and the real client that asks it."""
    with fake_hub.serving() as server:
        for version, names in (("first", ("v1", "refs/pr/1")), ("second", ())):
            folder = tmp_path / version
            folder.mkdir()
            (folder / "config.json").write_bytes(FILE + version.encode())
            server.put("owner/name", folder, *names)
        server.refused = {"owner/gated": "gated", "owner/private": "private", "owner/stale": "stale"}
        fake_hub.be_asked(server, tmp_path / "cache", monkeypatch)
        yield server


def test_files_come_with_their_size_told_once_and_later_from_the_cache(served, caplog):
    with caplog.at_level(logging.INFO, "reelworks"):
        folder = hub.download("owner/name", ["*.json"])
    whole = FILE + b"second"
    assert (folder / "config.json").read_bytes() == whole
    assert f"downloading 1 file, {len(whole)} B, of owner/name" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, "reelworks"):
        assert hub.download("owner/name", ["*.json"]) == folder
    assert "downloading" not in caplog.text
    assert len(served.served) == 1


def test_what_was_downloaded_needs_no_connection(served, monkeypatch):
    folder = hub.download("owner/name", ["*.json"])
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert hub.download("owner/name", ["*.json"]) == folder


@pytest.mark.parametrize("revision", ["v1", "refs/pr/1", "commit"])
def test_a_revision_is_a_name_or_a_commit(served, tmp_path, revision):
    """Files are those of the revision; what was downloaded is pinned by its commit, and named without the revision."""
    commit = next(key for key, folder in served.repositories["owner/name"].items() if folder.name == "first")
    asked = f"owner/name@{commit if revision == 'commit' else revision}"
    place = weights.require_there(asked, "model.weights")
    assert (place / "config.json").read_bytes() == FILE + b"first"
    assert hub.pin_commit(asked, place) == f"owner/name@{commit}"
    assert hub.strip_revision(asked) == "owner/name"
    name, _, kept = asked.partition("@")
    assert hub.pretrained(_given, asked, subfolder="vae") == (name, {"revision": kept, "subfolder": "vae"})
    assert hub.pretrained(_given, "owner/name") == ("owner/name", {})


def _given(name, **options):
    return name, options


def test_a_folder_with_the_name_of_a_revision_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "owner" / "name@v1"
    folder.mkdir(parents=True)
    source = "owner/name@v1"
    assert weights.require_there(source, "model.weights").resolve() == folder
    assert (hub.pretrained(_given, source), hub.strip_revision(source)) == ((source, {}), source)
    assert hub.pin_commit(source, folder) is None


def test_of_a_folder_others_are_told_the_last_name_also_where_it_could_be_a_repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ottilie" / "wan").mkdir(parents=True)
    for told, source in (("wan", "ottilie/wan"), ("owner/name@v1", "owner/name@v1"), ("mine", "/home/ottilie/mine")):
        assert hub.name_for_others(source) == told


def test_a_line_that_breaks_is_taken_up_again(served, tmp_path):
    """The client asks for the rest; the file is whole."""
    served.cuts = {"config.json"}
    place = hub.download("owner/name", ["*.json"])
    assert (place / "config.json").read_bytes() == FILE + b"second"
    assert served.cuts == set()


def test_progress_is_shown_while_a_hub_is_slow(served, caplog, capfd):
    """The size is told before the first file comes, and each file moves a bar, also once transformers is loaded."""
    optional_imports.transformers()
    served.slow_seconds = 0.2
    with caplog.at_level(logging.INFO, "reelworks"):
        hub.download("owner/name", ["*.json"])
    assert "downloading 1 file" in caplog.text
    shown = capfd.readouterr().err
    assert "Fetching 1 files:   0%" in shown
    assert "Fetching 1 files: 100%" in shown


def test_what_a_program_has_said_of_messages_and_bars_holds_once_a_library_is_loaded():
    """Of libraries that are imported for the first time here."""
    levels = optional_imports.transformers().utils.logging
    utils.disable_progress_bars()
    levels.set_verbosity_info()
    try:
        optional_imports._silent.__wrapped__("transformers")
        assert utils.are_progress_bars_disabled()
        assert levels.get_verbosity() == levels.INFO
        utils.enable_progress_bars()
        levels.set_verbosity_warning()
        optional_imports._silent.__wrapped__("transformers")
        assert not utils.are_progress_bars_disabled()
        assert levels.get_verbosity() == levels.ERROR
    finally:
        utils.enable_progress_bars()
        levels.set_verbosity_error()


@pytest.mark.slow  # the client waits between its tries
def test_a_hub_that_does_not_go_on_is_given_up_with_a_sentence(served, monkeypatch):
    """The client asks some times more; the next download takes up what came."""
    served.slow_seconds = 0.4
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    with refused("hub-failed", says="timed out") as caught:
        hub.download("owner/name", ["*.json"])
    assert "check the name and the connection" in caught.value.remedy
    assert len(served.served) > 1
    served.slow_seconds = 0.0
    assert (hub.download("owner/name", ["*.json"]) / "config.json").read_bytes() == FILE + b"second"


def test_what_the_disk_has_no_room_for_is_refused_before(served, monkeypatch):
    monkeypatch.setattr(hub.shutil, "disk_usage", lambda _: hub.shutil._ntuple_diskusage(1000, 990, 10))
    with refused("disk-full", says="10 B left"):
        hub.download("owner/name", ["*.json"])


@pytest.mark.parametrize(
    ("kind", "code", "says", "remedy"),
    [
        ("gated", "hub-gated", "is restricted", "{hub}/owner/gated, then log in"),
        ("unknown", "hub-repository-missing", "Repository not found", "{hub}/owner/unknown"),
        ("stale", "hub-token-refused", "Invalid credentials", "correct or unset the environment variable HF_TOKEN"),
        ("private", "hub-repository-missing", "or it is private", "log in with `hf auth login`"),
        (
            "name@v9",
            "hub-revision-missing",
            "owner/name has no revision v9",
            "{hub}/owner/name/commits",
        ),
    ],
)
def test_a_refusal_is_told_in_the_hubs_words_with_the_way_out(served, kind, code, says, remedy):
    """Its address is that of the hub that was asked, as HF_ENDPOINT names it."""
    with refused(code, says=says) as caught:
        hub.download(f"owner/{kind}", ["*.json"])
    assert remedy.format(hub=served.address) in caught.value.remedy


def test_without_a_connection_and_without_the_files_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with refused("hub-failed", says="HF_HUB_OFFLINE"):
        hub.download("owner/name", ["*.json"])


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_cache_that_cannot_be_written_is_no_fault_of_the_hub(served, monkeypatch, tmp_path, place):
    (tmp_path / "file").touch()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / place))
    with refused("hub-cache-unusable", says="Not a directory: .*file") as caught:
        hub.download("owner/name", ["*.json"])
    assert "HF_HUB_CACHE" in caught.value.remedy


def test_a_variable_that_the_client_does_not_understand_is_told(monkeypatch):
    """The client reads them when it is imported, in whatever part of it is asked for first."""
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "soon")
    monkeypatch.delitem(sys.modules, "huggingface_hub.constants")
    with refused("hub-failed", says="cannot begin.*soon"):
        hub.download("owner/name", ["*.json"])
