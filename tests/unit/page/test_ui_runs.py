"""What the page tells of runs is what their reports tell."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import fabricate
import page_client
import places
import pytest
from page_client import page

from reelworks.annexes.page import context, event_index, jobs, runs
from reelworks.annexes.page.workspace import key_of
from reelworks.core import files
from reelworks.data.run import lock
from reelworks.data.run.events import EventLog
from reelworks.reports import plots, run_data, run_facts, status


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("page")
    fabricate.make(root / "runs" / "first", steps=120, every=40, crash_at=70)
    fabricate.make(root / "runs" / "second", steps=80, every=40, crash_at=50)
    return root


@pytest.fixture(scope="module")
def client(root):
    with page(root) as client:
        yield client


def of(client, name):
    for _ in range(100):  # new folders are seen after two seconds
        for run in client.get("/api/runs").json():
            if run["name"] == name:
                return run
        time.sleep(0.1)
    raise AssertionError(name)


def test_a_run_is_told_as_its_report_tells_it(client, root):
    run = of(client, "first")
    told, figures = client.get(f"/api/runs/{run['key']}").json(), client.get(f"/api/runs/{run['key']}/figures").json()
    data = run_data.load(run_data.RunFolder(root / "runs" / "first"))
    assert (run["state"], run["step"], run["total_steps"]) == ("finished", 120, 300)
    values = {fact["label"]: fact["value"] for fact in told["headline"]}
    expected = {fact.label: fact.value for fact in run_facts.headline(data)}
    assert values.items() <= expected.items()
    assert expected.keys() - values.keys() <= {"Epochs"}  # counted apart, which takes longer
    assert [moment["title"] for moment in told["history"]] == [moment.title for moment in status.history(data)]
    assert figures == json.loads(files.to_json(plots.all_of(data)))


def test_previews_are_listed_by_step_and_served(client):
    shown = client.get(f"/api/runs/{of(client, 'first')['key']}/previews").json()
    assert [step["step"] for step in shown] == [40, 80, 120]
    assert [file["prompt"] for file in shown[0]["files"]] == fabricate.PROMPTS
    for file in shown[-1]["files"]:
        answer = client.get(file["url"])
        assert answer.headers["content-type"] == ("video/mp4" if file["video"] else "image/png")
        assert len(answer.content) > 100


@pytest.mark.parametrize("name", ["a b.png", "50%.png", "x#1.png"])
def test_media_of_any_name_are_served(client, root, name):
    """Such as those that another program wrote, or a prompt named."""
    folder = root / "runs" / "first" / "samples"
    shutil.copyfile(next(folder.rglob("*.png")), folder / name)
    url = runs._media(f"api/runs/{of(client, 'first')['key']}/samples", folder, name)["url"]
    assert client.get(url).content == (folder / name).read_bytes()


@pytest.mark.parametrize(
    "name", ["../run.json", "..%2frun.json", "%2e%2e/events.jsonl", "/etc/passwd", "step-000000040", "link.png"]
)
def test_nothing_else_is_served_as_a_preview(client, root, name):
    folder = root / "runs" / "first" / "samples"
    if not (folder / "link.png").is_symlink():
        places.link(folder / "link.png", root / "runs" / "first" / "run.json")
    assert client.get(f"/api/runs/{of(client, 'first')['key']}/samples/{name}").status_code == 404


def test_measured_checkpoints_are_shown_with_clips_and_advice(client, root):
    run = run_data.RunFolder(root / "runs" / "second")
    address = f"/api/runs/{of(client, 'second')['key']}/measured"
    assert client.get(address).json() is None
    series = fabricate.measure_alike(run)
    found = client.get(address).json()
    assert found["names"] == series.higher_is_better
    assert (found["advice"], found["about"]) == (series.advice.to_text(), [series.shape, 7])
    for row, one in zip(found["rows"], series.checkpoints, strict=True):
        best = [name for name, (_, is_best) in zip(found["names"], row["values"], strict=True) if is_best]
        assert best == [name for name, step in series.best.items() if step == row["step"]]
        assert [value for value, _ in row["values"]] == [f"{one.values[name]:.4g}" for name in found["names"]]
        assert row["copied"] == {str(n): told for n, told in one.copied.items()}
        for clip, file in zip(row["clips"], one.clips, strict=True):
            assert client.get(clip["url"]).content == file.read_bytes()
    assert [row["step"] for row in found["rows"] if row["copied"]] == [500, 600]
    series.checkpoints[0].clips[1].unlink()
    assert client.get(address).json()["rows"][0]["clips"][1]["url"] is None
    assert client.get(address.removesuffix("measured") + "evaluations/checkpoints-k.json").status_code == 404
    for broken in ("{", "[]", "{}", '{"best": 1, "advice": 2, "checkpoints": [3]}'):
        series.file().write_text(broken, encoding="utf-8")
        assert client.get(address).json() is None


def test_addresses_of_files_are_below_any_path_of_a_proxy(tmp_path):
    run = fabricate.make(tmp_path / "runs" / "one", steps=600, every=100)
    fabricate.measure_alike(run)
    (run.path / "exports").mkdir(exist_ok=True)
    (run.path / "exports" / "mine.safetensors").write_bytes(b"weights")
    with page(tmp_path) as client:
        for part in ("previews", "measured", "checkpoints/made"):
            told = client.get(f"/api/runs/{of(client, 'one')['key']}/{part}").text
            assert {address[:9] for address in re.findall(r'"url":\s*"([^"]+)"', told)} == {"api/runs/"}, part


def test_weights_and_clips_that_were_made_are_served_and_no_link_out_of_the_run(client, root, tmp_path):
    run, outside = root / "runs" / "first", tmp_path / "secret.safetensors"
    outside.write_bytes(b"secret")
    (run / "exports").mkdir(exist_ok=True)
    (run / "exports" / "mine.safetensors").write_bytes(b"weights")
    places.link(run / "exports" / "link.safetensors", outside)
    address = f"/api/runs/{of(client, 'first')['key']}/checkpoints/made"
    assert [file["name"] for file in client.get(address).json()] == ["exports/mine.safetensors"]
    assert client.get(f"{address}/exports/mine.safetensors").content == b"weights"
    for name in ("exports/link.safetensors", "../../secret.safetensors", "recipe.toml"):
        assert client.get(f"{address}/{name}").status_code == 404


def test_runs_are_compared_as_by_the_command(client):
    keys = [of(client, name)["key"] for name in ("first", "second")]
    found = client.get("/api/compare", params={"runs": ",".join(keys)}).json()
    assert found["names"] == ["first", "second"]
    steps = next(row["values"] for row in found["results"] if row["label"] == "steps")
    assert steps == ["120", "80"]
    assert {row["prompt"] for row in found["previews"]} == set(fabricate.PROMPTS)
    assert all(file["step"] == 80 for row in found["previews"] for file in row["files"])
    for one in (keys[0], f"{keys[0]},{keys[0]}"):
        answer = client.get("/api/compare", params={"runs": one})
        assert (answer.status_code, answer.json()["code"]) == (400, "runs-to-compare")


def test_a_run_whose_process_was_killed_is_not_running(client, root):
    run = fabricate.make(root / "runs" / "third", steps=30, every=10, crash_at=15)
    lines = run.events_file.read_text(encoding="utf-8").splitlines()
    run.events_file.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")  # no stop event
    holds = "import sys, time; from pathlib import Path; from reelworks.data.run import lock\nwith lock.hold(Path(sys.argv[1])): print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", holds, str(run.lock_file)], stdout=subprocess.PIPE)
    process.stdout.readline()
    assert of(client, "third")["state"] == "running"
    process.kill()
    process.wait()
    process.stdout.close()
    third = of(client, "third")
    assert (third["state"], third["detail"]) == ("crashed", status.KILLED)
    assert run.lock_file.read_text(encoding="utf-8")  # its holder could not tidy up


@pytest.mark.parametrize(
    ("reason", "state", "detail"),
    [
        ("finished", "finished", ""),
        ("signal", "stopped", "asked to stop; its work is saved"),
        ("storage", "stopped", "its storage gave no clip; its work is saved"),
    ],
)
def test_a_run_that_ended_tells_whether_it_is_to_go_on(root, tmp_path, reason, state, detail):
    shutil.copytree(root / "runs" / "first", tmp_path / "ended")
    EventLog(tmp_path / "ended" / "events.jsonl").write("stop", step=120, reason=reason)
    told = of(page_client.client(tmp_path), "ended")
    assert (told["state"], told["detail"]) == (state, detail)


@pytest.mark.parametrize(("later", "state", "detail"), [(-60, "finished", ""), (60, "crashed", "error: no weights")])
def test_a_job_that_failed_is_told_of_its_run_unless_that_ended_later(root, tmp_path, later, state, detail):
    run = tmp_path / "ended"
    shutil.copytree(root / "runs" / "first", run)
    EventLog(run / "events.jsonl").write("stop", step=120, reason="finished")
    client = page_client.client(tmp_path)
    folder = client.app.state.context.jobs.folder
    folder.mkdir(parents=True)
    job = jobs.PageJob("000001", "train", "a", (), str(tmp_path), 0.0, subject=key_of(run))
    jobs.write(folder / "000001.json", replace(job, state="failed", ended=time.time() + later, code=2))
    (folder / "000001.log").write_text("error: no weights", encoding="utf-8")
    told = of(client, "ended")
    assert (told["state"], told["detail"]) == (state, detail)


def test_a_run_ends_at_the_first_of_its_ends(tmp_path):
    run = run_data.RunFolder(tmp_path)
    stages = "".join(f'[[stage]]\nname = "{name}"\nsteps = {steps}\n' for name, steps in (("a", 20), ("b", 10)))
    for most, total in ((25, 25), (50, 30)):
        run.recipe_file.write_text(f"[train]\nmax_steps = {most}\n{stages}", encoding="utf-8")
        assert runs.total_steps(run) == total


def test_a_list_of_many_runs_reads_what_is_new_and_tells_no_state_of_a_part(root, tmp_path, monkeypatch):
    """A run is "reading" until its events are read; then neither they nor folders nor jobs are read again for each run."""
    first = root / "runs" / "first"
    events = (first / "events.jsonl").read_text(encoding="utf-8")
    shutil.copytree(first, tmp_path / "long")
    for i in range(260):
        (tmp_path / f"{i}").mkdir()
        shutil.copy(first / "run.json", tmp_path / f"{i}")
        (tmp_path / f"{i}" / "events.jsonl").write_text(events[: events.index("\n") + 1], encoding="utf-8")
    monkeypatch.setattr(context, "_AT_ONCE", len(events) // 3)
    monkeypatch.setattr(event_index, "_BLOCK_BYTES", 1024)
    client = page_client.client(tmp_path)  # whose threads do not read ahead
    told = [of(client, "long") for _ in range(3)]
    assert [run["state"] for run in told] == ["reading", "reading", "finished"]
    assert [run["reading"] is None for run in told] == [False, False, True]
    read = []

    def note(owner, name):
        call = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *arguments: [read.append(name), call(*arguments)][1])

    note(event_index.EventIndex, "_take")
    note(runs, "folder_bytes")
    note(client.app.state.context.jobs, "list")
    assert len(client.get("/api/runs").json()) == 261
    assert read == ["list"]


def test_stop_asks_the_process_that_holds_the_run(client, root):
    run = run_data.RunFolder(root / "runs" / "second")
    got = []
    former = signal.signal(signal.SIGTERM, lambda *_: got.append("asked"))
    try:
        with lock.hold(run.lock_file):
            key = of(client, "second")["key"]
            assert client.post(f"/api/runs/{key}/stop").json() == {"asked": os.getpid()}
            time.sleep(0.1)
    finally:
        signal.signal(signal.SIGTERM, former)
    assert got == ["asked"]
    answer = client.post(f"/api/runs/{key}/stop")
    assert (answer.status_code, answer.json()["code"]) == (400, "not-running")


def test_a_run_that_is_gone_is_told(client):
    answer = client.get("/api/runs/0123456789abcdef")
    assert answer.status_code == 404
    assert answer.json()["remedy"]


def test_a_generation_names_the_field_that_is_not_allowed(client):
    key = of(client, "first")["key"]
    for field, value in {"prompt": "", "width": 0, "num_frames": 0, "guidance_scale": 0.5, "seed": -1}.items():
        answer = client.post(f"/api/runs/{key}/checkpoints/40/generate", json={"prompt": "a", field: value})
        assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_of_runs_that_nobody_opened_only_what_the_list_shows_is_kept(tmp_path):
    for name in "ab":
        fabricate.make(tmp_path / name, steps=200)
    with page(tmp_path) as client:

        def rest():
            return {path.name: index.rests for path, index in client.app.state.context._indices.items()}

        listed = {run["name"]: run for run in client.get("/api/runs").json()}
        until = time.monotonic() + 30
        while rest() != {"a": True, "b": True} and time.monotonic() < until:
            time.sleep(0.05)
        assert rest() == {"a": True, "b": True}
        assert {run["name"]: run for run in client.get("/api/runs").json()} == listed
        assert len(client.get(f"/api/runs/{listed['a']['key']}/figures").json()) > 2
        assert rest() == {"a": False, "b": True}
        assert {run["name"]: run for run in client.get("/api/runs").json()} == listed
