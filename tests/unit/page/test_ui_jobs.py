"""Jobs are commands of their own: queued, stopped, and alive without the page."""

import os
import subprocess
import sys
import time
from dataclasses import replace

import page_client
import pytest
from page_client import client, page
from refused import refused

from reelworks.annexes.page import job_process, jobs, jobs_api, serve
from reelworks.annexes.page.jobs import Jobs
from reelworks.annexes.page.workspace import Workspace, key_of
from reelworks.core import system
from reelworks.data.run import lock
from reelworks.data.run.process import Process


@pytest.fixture
def queue(tmp_path):
    queue = Jobs(tmp_path / "jobs")
    queue.start()
    yield queue
    queue.close()


def ended(queue, job, seconds=300):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        now = queue.get(job.id)
        if now.ended is not None:
            return now
        time.sleep(0.05)
    raise AssertionError(queue.tail(job.id))


def test_a_command_runs_and_its_value_and_error_are_told(queue, tmp_path):
    made = queue.add("new", "a recipe", ["demo-data", str(tmp_path / "footage"), "--no-such-option"], tmp_path)
    failed = ended(queue, made)
    assert (failed.state, failed.code) == ("failed", 2)
    assert "--no-such-option" in queue.tail(made.id)
    listed = ended(queue, queue.add("plan", "help", ["plan", "--help"], tmp_path))
    assert listed.state == "done"
    assert "Forecast" in queue.tail(listed.id)
    for printed, value in (('{"steps": 3}', {"steps": 3}), ('{"error": {"code": "x"}}', None), ("{", None)):
        queue._file(listed, ".out").write_text(printed, encoding="utf-8")
        assert queue.result(listed.id) == value


def test_trainings_wait_for_one_another_and_can_be_taken_out(tmp_path):
    queue = Jobs(tmp_path / "jobs")  # not started: what is added still begins at once
    running = queue.add("train", "first", ["train", str(tmp_path / "no-recipe.toml")], tmp_path)
    waiting = queue.add("train", "second", ["train", str(tmp_path / "no-other.toml")], tmp_path)
    assert [job.state for job in queue.list()] == ["running", "waiting"]
    assert queue.stop(waiting.id).state == "stopped"
    assert ended(queue, running).state == "failed"
    assert queue.error(queue.get(running.id)).startswith("error: ")
    assert queue.get(waiting.id).process is None


def test_of_trainings_that_waited_for_the_page_one_begins(tmp_path):
    (tmp_path / "jobs").mkdir()
    for i in range(3):
        job = jobs.PageJob(f"{i + 1:06}", "train", "left", ("--version",), str(tmp_path), 0.0)
        jobs.write(tmp_path / "jobs" / f"{job.id}.json", job)
    queue = Jobs(tmp_path / "jobs")
    queue._step()
    assert [job.state for job in queue.list()] == ["running", "waiting", "waiting"]
    for job in queue.list()[1:]:
        queue.stop(job.id)
    ended(queue, queue.get("000001"))


@pytest.mark.slow
def test_a_command_that_waits_or_runs_is_not_queued_again(tmp_path):
    queue = Jobs(tmp_path / "jobs")
    first, other = (["train", str(tmp_path / name)] for name in ("a.toml", "b.toml"))
    running, waiting = queue.add("train", "a", first, tmp_path), queue.add("train", "b", other, tmp_path)
    assert queue.add("train", "a", first, tmp_path).id == running.id
    assert queue.add("train", "b", other, tmp_path).id == waiting.id
    assert [job.state for job in queue.list()] == ["running", "waiting"]
    queue.stop(waiting.id)
    ended(queue, running)
    again = queue.add("train", "a", first, tmp_path)  # what has ended is no obstacle
    assert again.id not in (running.id, waiting.id)
    ended(queue, again)


def test_a_process_that_vanished_has_failed(tmp_path):
    queue = Jobs(tmp_path / "jobs")
    (tmp_path / "jobs").mkdir()
    other = replace(Process.here(), started=1)  # had this id before
    job = jobs.PageJob("000001", "train", "lost", (), str(tmp_path), 0.0, state="running", process=other, started=1.0)
    jobs.write(tmp_path / "jobs" / "000001.json", job)
    assert queue.get("000001").state == "failed"


@pytest.mark.parametrize(
    ("code", "printed", "told"),
    [
        (
            -9,
            "error: of a part that was tried again\nwarning: clips are slow",
            "killed by SIGKILL: often the memory was full",
        ),
        (-11, "warning: clips are slow", "killed by SIGSEGV"),
        (-1, "warning: clips are slow", "killed by SIGHUP"),
        (None, "warning: clips are slow", "killed, or its machine was lost"),
        (1, "Traceback (most recent call last):\n  File x\nValueError: no such x", "ValueError: no such x"),
        (2, "error: of a part that was tried again\nerror: a\nremedy: b", "error: a\nremedy: b"),
    ],
)
def test_a_command_that_was_killed_did_not_fail_by_the_last_line_that_it_printed(tmp_path, code, printed, told):
    job = jobs.PageJob("000001", "train", "a", (), str(tmp_path), 0.0, state="failed", ended=2.0, code=code)
    jobs.write(tmp_path / "000001.json", job)
    (tmp_path / "000001.log").write_text(printed, encoding="utf-8")
    assert Jobs(tmp_path).error(job) == told


def test_of_many_jobs_the_oldest_that_have_ended_are_forgotten_with_their_output(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "_KEPT", 1)
    old = jobs.PageJob("000001", "train", "a", (), str(tmp_path), 0.0, state="running", process=Process.here())
    for number, more in enumerate(({}, {"state": "done", "ended": 1.0}, {"state": "done", "ended": 2.0}), 1):
        job = replace(old, id=f"{number:06}", **more)
        jobs.write(tmp_path / f"{job.id}.json", job)
        (tmp_path / f"{job.id}.log").touch()
    queue = Jobs(tmp_path)
    made = queue.add("train", "b", ["--version"], tmp_path)  # waits
    assert [job.id for job in queue.list()] == ["000001", "000003", made.id]
    assert sorted(file.stem for file in tmp_path.glob("*.log")) == ["000001", "000003"]


def test_a_command_that_starts_slowly_runs_until_its_process_has_ended(tmp_path, monkeypatch):
    """Python takes long to start from a cold volume: no clock tells that it failed, nothing starts beside it, and it can be stopped."""
    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(0.2)", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    clock = time.time
    monkeypatch.setattr(jobs.time, "time", lambda: clock() + 1e6 * (clock() - begun))
    begun = clock()
    queue = Jobs(tmp_path / "jobs")
    made = [queue.add("train", name, ["train", str(tmp_path / name)], tmp_path) for name in "ab"]
    queue._step()
    assert [job.state for job in queue.list()] == ["running", "waiting"]
    queue.stop(made[1].id)
    assert ended(queue, queue.stop(made[0].id)).code is not None


@pytest.mark.parametrize("has_been_started_again", [False, True])
def test_a_job_whose_page_ends_while_it_starts_it_is_left_to_the_next_page(tmp_path, has_been_started_again):
    """Its process may read the file late, when the next page has started the job, too."""
    job = jobs.PageJob("000001", "demo", "left", ("demo-data", str(tmp_path / "footage")), str(tmp_path), 0.0)
    if has_been_started_again:
        job = replace(job, state="running", started=2.0, writer=Process.here())
    jobs.write(tmp_path / "000001.json", job)
    command = [sys.executable, "-m", job_process.__name__, str(tmp_path / "000001.json"), "1.0"]
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
    assert jobs.read(tmp_path / "000001.json") == job
    assert not (tmp_path / "footage").exists()


def test_a_command_that_cannot_be_started_is_told_and_those_behind_it_begin(queue, tmp_path):
    gone = tmp_path / "gone"
    lost = queue.add("train", "a", ["--version"], gone)
    behind = queue.add("train", "b", ["--version"], tmp_path)
    assert queue.get(lost.id).state == "failed"
    assert queue.error(queue.get(lost.id)).startswith("error: it could not be started: ")
    assert ended(queue, behind).state == "done"


def test_what_cannot_be_begun_on_a_full_disk_waits_until_it_can(queue, tmp_path):
    left = jobs.PageJob("000001", "demo", "left", ("--version",), str(tmp_path), 0.0)
    (queue.folder / "000001.out").mkdir(parents=True)  # no file can be made there
    jobs.write(queue.folder / "000001.json", left)
    time.sleep(2 * jobs._POLL_SECONDS)
    assert queue.get("000001").state == "waiting"
    (queue.folder / "000001.out").rmdir()
    assert ended(queue, left).state == "done"


@pytest.mark.slow
def test_a_job_goes_on_without_the_page_and_the_next_page_tells_its_end(tmp_path):
    (tmp_path / "recipe.toml").write_text(
        "version = 1\n[model]\nname = 'stdit3-tiny'\n[[dataset]]\npath = 'x'\n", encoding="utf-8"
    )
    with page(tmp_path) as client:
        (recipe,) = client.get("/api/recipes").json()
        job = client.post(f"/api/recipes/{recipe['key']}/train").json()
        assert job["state"] == "running"
    with page(tmp_path) as client:
        for _ in range(600):
            now = client.get(f"/api/jobs/{job['id']}").json()
            if now["ended"]:
                break
            time.sleep(0.1)
    assert now["state"] == "failed"
    assert now["error"].startswith("error: train: ")  # the recipe has none


def test_a_command_that_was_stopped_has_not_failed(queue, tmp_path):
    """One that is no training has no code of its own for that: the signal ends it, also right after its start."""
    made = queue.add("demo", "footage", ["demo-data", str(tmp_path / "footage")], tmp_path)
    queue.stop(made.id)
    now = ended(queue, made)
    assert (now.state, now.code) == ("stopped", system.ENDED)


def test_a_folder_is_left_when_all_that_its_page_started_has_ended(tmp_path):
    """What waits still waits, for the next page."""
    with client(tmp_path) as asking:
        queue = asking.app.state.context.jobs
        made = [queue.add("demo", "footage", ["demo-data", str(tmp_path / name)], tmp_path) for name in "ab"]
        left = replace(made[0], id="000003", state="waiting", process=None, writer=None, started=None)
    jobs.write(queue.folder / "000003.json", left)
    told = []
    serve.end_jobs([tmp_path], told.append)
    assert told == ["asked to end, and waited for: demo footage"] * 2
    assert [job.state for job in queue.list()] == ["stopped", "stopped", "waiting"]
    assert not any(process.lives() for job in queue.list() if (process := job.process))


def test_a_page_that_would_start_others_hinders_ending_them(tmp_path):
    path = Workspace([tmp_path]).state_folder / "lock"
    with lock.hold(path, doing="page", field="FOLDER", remedy="stop it"), refused("run-locked", "FOLDER"):
        serve.end_jobs([tmp_path], print)


def test_where_nothing_runs_is_told_with_the_place_that_was_looked_at(tmp_path):
    told = []
    serve.end_jobs([tmp_path], told.append)
    assert told == [f"nothing runs of the queue in {Workspace([tmp_path]).state_folder / 'jobs'}"]


@pytest.mark.parametrize("table", ["samples]\nprompts = ['a']\nmetrics", "data]\nmeasures"])
@pytest.mark.parametrize("place", ["", "stage."])
def test_code_that_a_recipe_or_a_stage_of_it_names_is_asked_about(tmp_path, table, place):
    """Before training is begun, which could not ask."""
    code = tmp_path / "mine.py"
    code.write_text("Sharp = None\n", encoding="utf-8")
    ends = "[[stage]]\nname = 'a'\nsteps = 1\n[[stage]]\nname = 'b'\nsteps = 1\n"
    named = f"[{place}{table} = ['{code.as_posix()}:Sharp']\n"
    recipe = page_client.small_recipe("run", "data").replace("max_epochs = 1", "")
    text = recipe + ends + named if place else recipe + named + ends
    (tmp_path / "r.toml").write_text(text, encoding="utf-8")
    asking, address = client(tmp_path), f"/api/recipes/{key_of(tmp_path / 'r.toml')}"
    told = asking.post(f"{address}/train").json()
    assert (told["code"], told["value"]) == ("code-not-trusted", str(code))
    assert asking.post(f"{address}/trust").status_code == 200
    jobs_api.require_trust(tmp_path / "r.toml")


def test_an_unknown_job_is_told(queue):
    with refused("not-found"):
        queue.get("../../etc/passwd")
