"""A real Ray cluster on this machine scans and encodes what this process does by itself, whatever dies on the way."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import diffusers
import encode_child
import psutil
import pytest
import ray_actors
import ray_child
import tiny_families
import torch
from killed_scans import lines, shown, write_pictures
from test_stored_latents import CAPTIONS, CLIPS, checksums
from typer.testing import CliRunner

from reelworks.annexes.cluster import ray_cluster
from reelworks.annexes.cluster.ray_cluster import Cluster, RayPool
from reelworks.annexes.quality.run import measure_catalog
from reelworks.commands.main import app
from reelworks.core.errors import UserError
from reelworks.core.worker_pool import WorkerDied, WorkerHung
from reelworks.data.catalog.config import Source
from reelworks.data.catalog.scan import journal, scan
from reelworks.data.catalog.scan.scan import scan_sources
from reelworks.data.catalog.store.store import Catalog
from reelworks.data.schedule.cursor import RUN_START
from reelworks.training.encoding.encode import EncodingForecast
from reelworks.training.encoding.encode_worker import Progress
from reelworks.training.encoding.store import EncodedStore
from reelworks.training.plan import plan_forecast
from reelworks.training.precompute import encode_on_cluster, encoding
from reelworks.training.precompute.encode_on_cluster import ClusterJob, EncodeActor
from reelworks.training.recipe import dataset, recipe_file
from reelworks.training.recipe.dataset import RecipeData

# Ray warns of its own defaults.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")
MARK = "REELWORKS_CLUSTER_OF"  # variable by which processes of the tests' cluster are found
FILES = 240
Recipe = dict[str, Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A cluster of two CPUs, to which this process is connected; its address, which others find in the environment."""
    ray = pytest.importorskip("ray")
    folders = [str(Path(__file__).parent), str(Path(scan.__file__).parents[4])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("PYTHONPATH", os.pathsep.join(folders))
        patch.setenv(MARK, str(os.getpid()))
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        patch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
        yield os.environ["RAY_ADDRESS"]
        ray.shutdown()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "data", FILES)


def by_uid(catalog: Path) -> dict[int, dict[str, Any]]:
    """Rows without their ordinals, which depend on the history of a catalog."""
    rows = Catalog.open(catalog).live().to_table().drop_columns("ordinal").to_pylist()
    return {row["uid"]: row for row in rows}


def storing(tiny: Callable[..., Recipe], folder: Path, **changes: Any) -> Recipe:
    """Make a recipe with a catalog and a store of its own."""
    return tiny(f"{folder}-run", catalog=f"{folder}-catalog", encode={"store": True, "folder": str(folder)}, **changes)


def by_cluster(recipe: Recipe, cpus: int = 2) -> tuple[EncodingForecast, Progress]:
    """Scan, and encode what a recipe lacks, on the cluster, as the command does."""
    parsed = recipe_file.parse(recipe)
    with ray_cluster.connect() as connected:
        assert connected == Cluster(2, 0)
        dataset.scan_recipe(parsed, engine="ray")
        opened = RecipeData.open(parsed)
        job = encoding.build_encoding_job(
            opened, encoding.open_store(opened), torch.device("cpu"), plan_forecast.plan_spec(opened)
        )
        return encode_on_cluster.encode_missing(opened, job, Cluster(cpus, 0), limit=None, on_progress=lambda _: None)


def by_this_process(recipe: Recipe) -> None:
    dataset.scan_recipe(recipe_file.parse(recipe))
    encode_child.encode(recipe)


@pytest.mark.slow(reason="starts a cluster")
def test_scan_and_store_are_those_of_this_process(cluster: str, tiny: Callable[..., Recipe], tmp_path: Path) -> None:
    here, there = (storing(tiny, tmp_path / name) for name in ("here", "there"))
    by_this_process(here)
    _, progress = by_cluster(there, cpus=1)
    assert (progress.done, progress.captions, progress.failures) == (CLIPS, CAPTIONS, [])
    assert progress.bytes == sum(EncodedStore.open(tmp_path / "there").table().column("bytes").to_pylist())
    assert shown(tmp_path / "there-catalog") == shown(tmp_path / "here-catalog")
    assert checksums(tmp_path / "there") == checksums(tmp_path / "here")  # the pixel autoencoder is lossless


@pytest.mark.slow
def test_the_command_uses_all_of_the_cluster(cluster: str, tiny: Callable[..., Recipe], tmp_path: Path) -> None:
    by_this_process(storing(tiny, tmp_path / "here"))
    file = tmp_path / "recipe.toml"
    file.write_text(recipe_file.dump(recipe_file.parse(storing(tiny, tmp_path / "there"))), encoding="utf-8")
    done = CliRunner().invoke(app, ["encode", str(file), "--engine", "ray", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["encoded_clips"], told["encoded_captions"], told["failed"]) == (CLIPS, CAPTIONS, [])
    assert checksums(tmp_path / "there") == checksums(tmp_path / "here")
    assert not list((tmp_path / "there" / "cluster").iterdir())
    done = CliRunner().invoke(app, ["encode", str(file), "--engine", "ray", "--json"])
    assert json.loads(done.stdout)["missing_clips"] == 0


@pytest.mark.slow
def test_a_file_that_kills_its_process_is_named(
    cluster: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly = [data / f"{ray_child.DEADLY}-{i}.png" for i in range(2)]
    for file in deadly:
        file.write_bytes((data / "0.png").read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(scan, "examine_on_node", ray_child.examine_unless_deadly)
        result = scan_sources([Source("d", data)], tmp_path / "there", engine="ray")
    assert {(str(file), "the decoder crashed on it") for file in deadly} <= set(result.bad_files)
    again = scan_sources([Source("d", data)], tmp_path / "there", workers=2)
    assert (again.changed, again.unchanged) == (2, FILES)  # which it tries again, and no other
    scan_sources([Source("d", data)], tmp_path / "here", workers=2)
    assert by_uid(tmp_path / "there") == by_uid(tmp_path / "here")


@pytest.mark.slow(reason="starts a cluster")
def test_measures_are_those_of_this_process(cluster: str, data: Path, tmp_path: Path) -> None:
    found = {}
    for engine in ("local", "ray"):
        scan_sources([Source("d", data)], tmp_path / engine, workers=2)
        result = measure_catalog(tmp_path / engine, ("exposure", "duplicates"), engine=engine)
        assert (result.failed, result.measured) == ((), result.clips)
        found[engine] = by_uid(tmp_path / engine)
    assert found["ray"] == found["local"]
    assert {row["score:brightness"] for row in found["ray"].values()} > {None}


@pytest.mark.slow(reason="starts a cluster")
def test_a_node_that_does_not_see_the_files_is_named(
    cluster: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "examine_on_node", ray_child.elsewhere)
    with pytest.raises(UserError, match=f"node {socket.gethostname()} .* does not see {data}/"):
        scan_sources([Source("d", data)], tmp_path / "there", engine="ray")


@pytest.mark.slow(reason="starts a cluster")
def test_an_error_of_a_call_is_raised_as_itself(cluster: str) -> None:
    with pytest.raises(UserError, match="value = 3: is too small") as raised:
        RayPool().call(ray_child.refuse, 3)
    assert (type(raised.value), raised.value.code, raised.value.remedy) == (UserError, "too-small", "give more")


@pytest.mark.slow(reason="starts a cluster")
def test_a_call_that_takes_too_long_ends_its_process(cluster: str) -> None:
    with pytest.raises(WorkerHung, match="more than 1 s"):
        RayPool().call(ray_child.sleep, 600.0, 1.0)
    assert RayPool().call(ray_child.sleep, 0.1, 60.0) == 0.1


@pytest.mark.slow(reason="starts a cluster")
def test_calls_that_are_running_may_return_when_the_pool_is_closed_and_those_that_hang_are_ended(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "_PATIENCE_SECONDS", 10.0)
    pool = RayPool()
    with ThreadPoolExecutor() as threads:
        soon = threads.submit(pool.call, ray_child.sleep, 0.5)
        while not pool._running:
            time.sleep(0.01)
        pool.close()
        assert soon.result() == 0.5
        with pytest.raises(WorkerDied, match="closed"):
            pool.call(ray_child.sleep, 0.0)
        monkeypatch.setattr(ray_cluster, "_PATIENCE_SECONDS", 1.0)
        pool = RayPool()
        never = threads.submit(pool.call, ray_child.sleep, 600.0)
        while not pool._running:
            time.sleep(0.01)
        pool.close()
        with pytest.raises(WorkerDied):
            never.result(timeout=300)


def test_without_ray_the_error_says_what_to_install(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'reelworks\[ray\]'"):
        scan_sources([Source("d", data)], tmp_path / "there", engine="ray")


def test_a_cluster_that_does_not_answer_is_named(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest.importorskip("ray"), "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(UserError, match=r"RAY_ADDRESS = '127.0.0.1:1': no Ray cluster can be reached"):
        scan_sources([Source("d", data)], tmp_path / "there", engine="ray")


def test_processes_of_torchrun_do_not_share_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="start the command by itself"), ray_cluster.connect(for_actors=True):
        pass


def test_a_connection_that_was_there_before_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook, which works on with its cluster; what was connected here is disconnected."""
    ray, ended = pytest.importorskip("ray"), list[bool]()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True}])
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0})
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(True))
    for was_there, ends in ((True, []), (False, [True])):
        monkeypatch.setattr(ray, "is_initialized", lambda was_there=was_there: was_there)
        with ray_cluster.connect() as connected:
            assert (connected, ended) == (Cluster(4, 0), [])
        assert ended == ends


@pytest.mark.parametrize("lost", ["working_folder", "tries", "catalog", "dataset"])
def test_a_node_without_the_folders_is_named_with_the_path(
    tiny: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = storing(tiny, tmp_path / "there")
    (tmp_path / "there-catalog").mkdir()
    (tmp_path / "there-catalog" / "catalog.json").write_text("{}", encoding="utf-8")
    places = {"working_folder": str(tmp_path), "tries": str(tmp_path)}
    path = "/elsewhere"
    if lost in places:
        places[lost] = path
        path = path if lost == "working_folder" else recipe["encode"]["folder"]
    elif lost == "catalog":
        recipe["catalog"] = path
    else:
        recipe["dataset"] = [{"path": path}]
    job = ClusterJob(recipe_file.parse(recipe), 1, RUN_START, None, **places, most_tries=1, uses_gpu=False)
    row = EncodeActor(job)(json.dumps({"number": 0, "name": "chunk", "clips": 1}))
    error = json.loads(row)["error"]
    assert (error["code"], error["value"]) == ("node-lacks-folder", path)
    assert error["problem"].startswith(f"on node {socket.gethostname()}: ")


@pytest.mark.slow
def test_a_killed_scan_goes_on(cluster: str, data: Path, tmp_path: Path) -> None:
    catalog, opened = tmp_path / "catalog", tmp_path / "opened"
    draw, command = random.Random(3), [sys.executable, ray_child.__file__, str(data), str(catalog)]
    for until in sorted(draw.sample(range(30, FILES - 100), 3)):
        process = subprocess.Popen(command)
        while lines(catalog / journal.NAME) < until and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert not (catalog / "catalog.json").exists()
        time.sleep(1)  # what it had started notes its files
    kept, before = lines(catalog / journal.NAME) - 1, lines(opened)
    assert kept > 40
    assert subprocess.run(command).returncode == 0
    assert lines(opened) - before == FILES - kept
    scan_sources([Source("d", data)], tmp_path / "here", workers=1)
    assert shown(catalog) == shown(tmp_path / "here")


@pytest.mark.slow
def test_latents_of_a_vae_are_equal_within_its_dtype(cluster: str, tiny: Callable[..., Recipe], tmp_path: Path) -> None:
    torch.manual_seed(0)
    diffusers.AutoencoderKL(**tiny_families.AUTOENCODERS["sdxl"]).save_pretrained(tmp_path / "vae")
    vae = {"autoencoder": {"name": "sdxl", "weights": str(tmp_path / "vae"), "stride": None}}
    recipes = {name: storing(tiny, tmp_path / name, **vae) for name in ("here", "there")}
    for recipe in recipes.values():
        del recipe["autoencoder"]["stride"]
        recipe["bucket"] = [{"resolution": "32px", "num_frames": 1, "batch_size": 3}]
    by_this_process(recipes["here"])
    _, progress = by_cluster(recipes["there"])
    here, there = (EncodedStore.open(tmp_path / name) for name in ("here", "there"))
    latents = [row["key"] for row in here.table().to_pylist() if row["kind"] == "latent"]
    assert len(latents) == progress.done > 5
    for key in latents:
        torch.testing.assert_close(there.read(key), here.read(key), rtol=1e-5, atol=1e-5)
    assert checksums(tmp_path / "there").keys() == checksums(tmp_path / "here").keys()


def marked(*names: str) -> list[psutil.Process]:
    """Living processes of the tests' cluster whose command line has one of the names."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ", "status"]):
        info = process.info
        is_ours = (info["environ"] or {}).get(MARK) == str(os.getpid()) and info["status"] != psutil.STATUS_ZOMBIE
        if is_ours and any(name in " ".join(info["cmdline"] or []) for name in names):
            found.append(process)
    return found


def wait_for_none(find: Callable[[], list[Any]]) -> None:
    deadline = time.monotonic() + 120
    while (left := find()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []


@pytest.mark.slow
def test_actors_killed_at_random_moments_lose_only_what_was_in_flight(
    cluster: str, tiny: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_this_process(storing(tiny, tmp_path / "here", data={"num_workers": 1}))
    draw, kills = random.Random(8), 0
    monkeypatch.setattr(encode_on_cluster, "EncodeActor", ray_actors.SlowActor)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(by_cluster, storing(tiny, tmp_path / "there", data={"num_workers": 1}))
        while not running.done():
            time.sleep(draw.uniform(0.2, 4.0))
            if kills < 10 and (alive := marked("Actor)")):
                draw.choice(alive).kill()
                kills += 1
        _, progress = running.result()
    assert kills >= 4
    assert (progress.done, progress.failures) == (CLIPS, [])
    assert checksums(tmp_path / "there") == checksums(tmp_path / "here")
    assert len(EncodedStore.open(tmp_path / "there").table()) == CLIPS + CAPTIONS  # nothing is there twice
    assert CLIPS <= lines(tmp_path / "encoded-clips") <= CLIPS + 3 * kills  # at most the micro-batch in flight
    wait_for_none(lambda: marked("Actor)", "spawn_main"))


@pytest.mark.slow
def test_a_part_that_kills_its_actor_ends_the_command(
    cluster: str, tiny: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(encode_on_cluster, "EncodeActor", ray_actors.DeadlyActor)
        patch.setattr(encode_on_cluster, "TRIES", 2)
        with pytest.raises(UserError, match="its process ended 2 times while it encoded chunk"):
            by_cluster(storing(tiny, tmp_path / "there"))
    stored = len(EncodedStore.open(tmp_path / "there").table())
    assert stored == CAPTIONS
    by_cluster(storing(tiny, tmp_path / "there"))
    assert len(checksums(tmp_path / "there")) == CLIPS + CAPTIONS


@pytest.mark.slow
def test_a_cluster_that_was_started_for_a_command_ends_with_it(data: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_ADDRESS": "local", MARK: str(tmp_path)}
    command = [sys.executable, "-m", "reelworks", "scan", str(data), "-o", str(tmp_path / "there"), "--engine", "ray"]

    def left() -> list[str]:
        found = psutil.process_iter(["environ", "cmdline"])
        return [p.info["cmdline"] for p in found if (p.info["environ"] or {}).get(MARK) == str(tmp_path)]

    assert subprocess.run(command, env=environment).returncode == 0
    wait_for_none(left)
    process = subprocess.Popen(command, env=environment)
    while len(left()) < 4 and process.poll() is None:
        time.sleep(0.05)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    wait_for_none(left)
