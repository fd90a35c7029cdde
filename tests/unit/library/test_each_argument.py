"""Each argument of the public functions changes what they do, or is refused; a refusal names an argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import saved_run
import torch
from refused import refused
from torch.nn import functional

import reelworks as rw
from reelworks.core.errors import UserError
from reelworks.data.loader import loader as loader_module
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.testing import sample_catalog, sample_dataset, sample_folder
from reelworks.training.recipe import recipe_file

TESTS = Path(__file__).parents[2]
GEOMETRY = rw.Geometry((4, 8, 8), (1, 2, 2))
ENTRY = rw.BucketEntry("64px", num_frames=[1, 5], batch_size=[4, 2])
TABLE = rw.BucketTable.from_entries([ENTRY], geometry=GEOMETRY)
SMALL = rw.BucketTable.from_entries([rw.BucketEntry("32px", num_frames=1)], geometry=GEOMETRY)
TWICE = rw.DataSpec((rw.DatasetConfig(path=str(sample_folder()), repeats=2),))
NOISE = torch.randn(1, 2, 1, 2, 2, generator=torch.Generator().manual_seed(1))
# Arguments whose effect another test sees, of processes and whole trainings.
SEEN_BY = {
    "Loader.num_workers": "test_a_decoder_of_ones_own_reads_the_same_frames",
    "Loader.all_reduce": "test_weights_sum_to_one_over_what_is_valid_on_all_ranks",
    "Catalog.scan.workers": "test_processes_find_what_threads_find",
    "train.recipe": "test_each_key_changes_the_run",
    "train.resume": "test_no_combination_ends_in_a_traceback",
    "train.restart_data": "test_no_combination_ends_in_a_traceback",
}
INTERNAL = {"Dataset.rows", "Dataset.companion_rows", "Dataset.run", "Dataset._plans"}  # for rooms of the training


def darker(micro_batch: rw.MicroBatch) -> rw.MicroBatch:
    micro_batch.frames.zero_()
    return micro_batch


def failing(path: str, numbers: Any) -> Any:
    raise OSError("no such codec")


def read(**arguments: Any) -> object:
    """What a loader reads, how it asks for it, and what it writes."""
    loader, asked = rw.Loader(**arguments), []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DecodePool", "read_ahead"):
            made = getattr(loader_module, name)
            patch.setattr(
                loader_module, name, lambda *given, make=made, **how: asked.append(given[-1]) or make(*given, **how)
            )
        for step in loader:
            asked += [
                (m.paths, str(m.frames.device), m.frames.device.type != "meta" and m.frames.sum().item()) for m in step
            ]
    return len(loader), asked, loader._run is not None and loader._run.path.exists()


def of_targets(made: Any) -> object:
    """What an objective trains for some draws."""
    x0, t = NOISE.expand(2, -1, 3, -1, -1), made.times(torch.tensor([0.25, 0.5]), 1.0)[1]
    ratio = (
        made.shift_ratio(height=512, width=512, num_frames=9, latent_frames=3) if hasattr(made, "shift_ratio") else 0
    )
    return ratio, t.tolist(), made.losses(torch.ones_like(x0), x0, x0, x0 + 1, t, None).tolist()


def attending(times: int) -> Callable[[], None]:
    def step() -> None:
        for i in range(1, times + 1):
            functional.scaled_dot_product_attention(*[torch.zeros(1, 1, 2 * i, 2)] * 3)

    return step


class Counting:
    """A loader of numbers."""

    steps = 4

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.steps:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Longer(Counting):
    steps = 6


def cases(tmp: Path) -> dict[str, tuple[Callable[..., object], dict[str, Any], dict[str, Any]]]:
    """By name: a function that returns what it did, right arguments, and another value of each."""
    pictures, spare = tmp / "pictures", iter(range(1000))
    pictures.mkdir()
    for file in sample_folder().glob("picture-0.*"):
        (pictures / file.name).write_bytes(file.read_bytes())
    other = rw.Catalog.scan(pictures, to=tmp / "other", workers=1)
    run, second = saved_run.make(tmp / "run").path, saved_run.make(tmp / "second", seed=3).path
    lora = saved_run.make(tmp / "lora", lora={"rank": 2}).path
    state = {"a": 1, "b": torch.ones(2)}
    recipe = tmp / "recipe.toml"
    recipe.write_text(recipe_file.dump(recipe_file.parse(saved_run.RECIPE | {"output": str(tmp / "train")})), "utf-8")

    def scan(**given: Any) -> object:
        made = rw.Catalog.scan(**({"to": tmp / "scanned"} | given))
        return made.path, made.live().column("dataset").tolist()

    def store(root: Path | None = None, step: int = 1, state: Any = state, **given: Any) -> Any:
        policy = {key: given.pop(key) for key in ("policy",) if key in given}
        made = rw.CheckpointStore(root or tmp / f"store{next(spare)}", **policy)
        made.save(step, state, **given)
        made.save(step + 2, {"a": 2, "b": torch.zeros(2)})
        return made

    def saved(**given: Any) -> object:
        made = store(**given)
        return made.root.name if "root" in given else "", [
            (made.info(step).step, made.info(step).metrics, str(made.read(step))) for step in made.steps()
        ]

    def loaded(step: int | None, state: dict[str, Any]) -> object:
        made = store(tmp / "loaded")
        state = dict(state)
        made.load_latest(state) if step is None else made.load(step, state)
        return str(state)

    def model(**given: Any) -> object:
        made = rw.load_model(**given)
        return made.step, [p.double().sum().item() for p in made.denoiser.module.parameters()]

    def export(**given: Any) -> object:
        made = rw.export(**({"target": tmp / f"x{next(spare)}.safetensors"} | given))
        return [file.read_bytes() for file in made.files], "target" in given and made.files

    def sample(name: str) -> Callable[..., object]:
        return lambda **given: getattr(rw.samplers, name)(**given).tolist()

    def resumes(**given: Any) -> object:
        asked = []
        counting = given.pop("make_loader", Counting)
        rw.testing.assert_exact_resume(lambda: asked.append(0) or counting(), **given)
        return len(asked)

    def network(z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.tanh(z)

    def twice(z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.cat([z, z], 1))

    def generator(seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    guidance = {"guidance_scale": 2.0, "unconditional": lambda z, t: torch.zeros_like(network(z, t))}
    both = {"guidance_scale": 2.0, "unconditional": lambda z, t: torch.zeros_like(twice(z, t))}
    sampling = {"noise": NOISE, "steps": 3}
    others = {"noise": NOISE + 1, "steps": 4}
    return {
        "BucketTable.from_entries": (
            lambda **given: str(rw.BucketTable.from_entries(**given).buckets),
            {"entries": [ENTRY], "geometry": GEOMETRY},
            {"entries": [rw.BucketEntry("32px", num_frames=1)], "geometry": rw.Geometry((4, 32, 32), (1, 1, 1))},
        ),
        "Catalog.open": (
            lambda **given: repr(rw.Catalog.open(**given)),
            {"path": sample_catalog().path},
            {"path": other.path, "version": 0},
        ),
        "Catalog.scan": (
            scan,
            {"folders": pictures},
            {"folders": {"x": pictures}, "to": tmp / "there", "engine": "elsewhere"},
        ),
        "Dataset": (
            lambda **given: (repr(rw.Dataset(**given)), len(rw.Dataset(**given))),
            {"catalog": sample_catalog(), "table": TABLE},
            {"catalog": other, "table": SMALL, "spec": TWICE, "seed": 7},
        ),
        "Loader": (
            read,
            {"dataset": sample_dataset()},
            {
                "dataset": sample_dataset(seed=3),
                "micro_batches_per_step": 2,
                "rank": 1,
                "world_size": 2,
                "prefetch_bytes": 1,
                "decode_timeout": 3.0,
                "device": "meta",
                "record_to": tmp / "record",
                "max_decode_failures": 1.0,
                "transform": darker,
                "decoder": failing,
            },
        ),
        "CheckpointStore": (saved, {}, {"root": tmp / "root", "policy": rw.Retention(keep_last=1, keep_best=None)}),
        "CheckpointStore.save": (
            saved,
            {"step": 1, "state": state},
            {"step": 2, "state": {"a": 2}, "metrics": {"loss": 1.0}},
        ),
        "CheckpointStore.load": (loaded, {"step": 1, "state": {"a": 0}}, {"step": 3, "state": {"b": None}}),
        "CheckpointStore.load_latest": (
            lambda **given: loaded(None, **given),
            {"state": {"a": 0}},
            {"state": {"b": 0}},
        ),
        "CheckpointStore.read": (
            lambda **given: str(store().read(**given)),
            {"step": 1},
            {"step": 3, "parts": ["a"], "rank": 1},
        ),
        "load_model": (model, {"source": run}, {"source": second, "ema": False}),
        "export": (
            export,
            {"source": lora},
            {
                "source": second,
                "target": tmp / "target.safetensors",
                "ema": False,
                "dtype": "float16",
                "format": "kohya",
                "merge": True,
            },
        ),
        "check_attention": (
            lambda **given: (rw.check_attention(**given).calls, rw.check_attention(**given).worst),
            {"step": attending(1)},
            {"step": attending(2), "device": "cuda:99"},
        ),
        "plan": (
            lambda **given: repr(rw.plan(**given)),
            {"dataset": sample_dataset()},
            {"dataset": rw.Dataset(other, TABLE), "micro_batches_per_step": 2, "world_size": 2, "epoch": 1},
        ),
        "train": (
            lambda **given: rw.train(**given),
            {"recipe": recipe},
            {"overrides": ["train.max_steps=0"]},
        ),
        "objectives.RectifiedFlow": (
            lambda **given: of_targets(rw.objectives.RectifiedFlow(**given)),
            {},
            {"config": ObjectiveConfig(timestep_sampling="uniform"), "shift": 3.0},
        ),
        "objectives.Ddpm": (
            lambda **given: of_targets(rw.objectives.Ddpm(**given)),
            {"prediction": "v"},
            {"prediction": "epsilon", "config": ObjectiveConfig(name="v-prediction", loss="huber")},
        ),
        "objectives.Iddpm": (lambda: None, {}, {}),
        "objectives.from_config": (
            lambda config: type(rw.objectives.from_config(config)),
            {"config": ObjectiveConfig()},
            {"config": ObjectiveConfig(name="iddpm")},
        ),
        "samplers.flow": (
            sample("flow"),
            {"velocity": network} | sampling,
            {"velocity": torch.add, "shift": 3.0} | others | guidance,
        ),
        "samplers.ddim": (
            sample("ddim"),
            {"model": network} | sampling,
            {"model": torch.add, "prediction": "v", "zero_terminal_snr": True} | others | guidance,
        ),
        "samplers.iddpm": (
            lambda **given: sample("iddpm")(**({"generator": generator(1)} | given)),
            {"model": twice} | sampling,
            {"model": lambda z, t: 0 * twice(z, t), "generator": generator(2)} | others | both,
        ),
        "testing.assert_exact_resume": (
            resumes,
            {"make_loader": Counting},
            {"make_loader": Longer, "steps": 2, "at": [1], "content": lambda step: 1 / 0},
        ),
    }


# What an argument is given with, where its effect needs another one; it is changed against these.
BESIDE = {
    "Loader.rank": {"world_size": 2},
    "Loader.world_size": {"rank": 0},
    "Loader.decoder": {"max_decode_failures": 1.0},
    "Loader.max_decode_failures": {"decoder": failing},
    "samplers.ddim.zero_terminal_snr": {"prediction": "v"},
    "samplers.flow.unconditional": {"guidance_scale": 2.0, "unconditional": lambda z, t: z},
    "samplers.ddim.unconditional": {"guidance_scale": 2.0, "unconditional": lambda z, t: z},
    "samplers.iddpm.unconditional": {"guidance_scale": 2.0, "unconditional": lambda z, t: z.repeat(1, 2, 1, 1, 1)},
}


def public() -> dict[str, Callable[..., Any]]:
    """The functions of the library, and the classes that do something with their arguments."""
    stores = {
        f"CheckpointStore.{name}": getattr(rw.CheckpointStore, name) for name in ("save", "load", "load_latest", "read")
    }
    found: dict[str, Callable[..., Any]] = {
        "BucketTable.from_entries": rw.BucketTable.from_entries,
        "Catalog.open": rw.Catalog.open,
        "Catalog.scan": rw.Catalog.scan,
        **{name: getattr(rw, name) for name in ("Dataset", "Loader", "CheckpointStore")},
        **stores,
    }
    found |= {name: value for name in rw.__all__ if inspect.isfunction(value := getattr(rw, name))}
    for module in (rw.objectives, rw.samplers, rw.testing):
        name = module.__name__.replace("samplers.functions", "samplers").rpartition(".")[2]
        own = {key: value for key, value in vars(module).items() if not key.startswith("_")}
        places = {"reelworks.testing.exact_resume"} if module is rw.testing else {module.__name__}
        found |= {
            f"{name}.{key}": value
            for key, value in own.items()
            if callable(value) and getattr(value, "__module__", "") in places and not hasattr(value, "_is_protocol")
        }
    return found


def outcome(call: Callable[..., object], given: dict[str, Any]) -> object:
    try:
        return call(**given)
    except UserError as error:
        return error.field
    except ZeroDivisionError:
        return "called"


@pytest.fixture(scope="module")
def all_cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return cases(tmp_path_factory.mktemp("cases"))


@pytest.mark.parametrize("name", public())
def test_each_argument_changes_something_or_is_refused(name: str, all_cases: dict[str, Any]) -> None:
    call, right, others = all_cases[name]
    arguments = {
        f"{name}.{argument}"
        for argument, parameter in inspect.signature(public()[name]).parameters.items()
        if argument != "self" and parameter.kind is not parameter.VAR_KEYWORD
    }
    assert arguments - INTERNAL - SEEN_BY.keys() == {f"{name}.{argument}" for argument in others}
    usual = outcome(call, right)
    for argument, value in others.items():
        beside = BESIDE.get(f"{name}.{argument}", {})
        before = outcome(call, right | beside) if beside else usual
        assert before != outcome(call, right | beside | {argument: value}), argument


def test_effects_that_other_tests_see_are_seen_there() -> None:
    texts = "".join(file.read_text(encoding="utf-8") for file in TESTS.rglob("test_*.py"))
    assert [name for name in SEEN_BY.values() if f"def {name}(" not in texts] == []


def test_overrides_of_a_recipe_that_was_read_are_refused(tmp_path: Path) -> None:
    """They change what a file says, and the keys that other keys decide are decided by then."""
    recipe = recipe_file.parse(saved_run.RECIPE | {"output": str(tmp_path / "run")})
    with refused("argument-invalid", "overrides", says="the recipe's file"):
        rw.train(recipe, overrides=[f"output={tmp_path / 'other'}"])
    assert list(tmp_path.iterdir()) == []


def refusals(tmp: Path) -> dict[str, list[dict[str, Any]]]:
    """Arguments of the right types that are refused, by function."""
    run, there = saved_run.make(tmp / "run"), tmp / "there.safetensors"
    there.touch()
    plain = saved_run.make(tmp / "plain").path
    rw.CheckpointStore(plain / "checkpoints").save(6, {"model": rw.load_model(plain).denoiser.module})
    sampler = {"noise": NOISE, "guidance_scale": 2.0}
    exports = {"source": run.path, "target": tmp / "new.safetensors"}
    one, z = {"model": torch.add}, {"entries": [ENTRY], "geometry": GEOMETRY}
    return {
        "BucketTable.from_entries": [
            z | {"max_crop": 2.0},
            z | {"max_tokens": 10},
            z | {"probability": "downgrade"},
            z | {"batch_size": "auto"},
            z | {"entries": [rw.BucketEntry("480q", num_frames=[1])]},
            z | {"entries": [rw.BucketEntry("480p", num_frames=[1, 5], batch_size=[1])]},
        ],
        "Catalog.open": [{"path": tmp}, {"path": sample_catalog().path, "version": 99}],
        "Catalog.scan": [
            {"folders": tmp / "nothing", "to": tmp / "c"},
            {"folders": there, "to": tmp / "c"},
            {"folders": sample_folder(), "to": there},
            {"folders": sample_folder(), "to": tmp / "c", "engine": "elsewhere"},
            {"folders": [rw.DatasetConfig(path=str(sample_folder()), control="nothing")], "to": tmp / "c"},
            {"folders": [rw.DatasetConfig(path=str(sample_folder()))] * 2, "to": tmp / "c"},
        ],
        "Dataset": [
            {"catalog": sample_catalog(), "table": TABLE, "seed": -1},
            {"catalog": sample_catalog(), "table": TABLE, "spec": rw.DataSpec((rw.DatasetConfig(path=str(tmp)),))},
        ],
        "Loader": [
            {"dataset": sample_dataset(), "rank": 3, "world_size": 2},
            {"dataset": sample_dataset(), "device": "cuda:99"},
            {"dataset": sample_dataset(), "num_workers": 1, "decoder": lambda path, numbers: None},
        ],
        "CheckpointStore": [{"root": ""}],
        "CheckpointStore.save": [
            {"step": -1, "state": {}},
            {"step": 1, "state": {"a": object()}},
            {"step": 1, "state": {1: 1}},
            {"step": 1, "state": {}, "metrics": {"loss": "high"}},
        ],
        "CheckpointStore.load": [{"step": 9, "state": {}}, {"step": 1, "state": {"nothing": 1}}],
        "CheckpointStore.load_latest": [{"state": {"nothing": 1}}, {"state": []}],
        "CheckpointStore.read": [{"step": 9}, {"step": 1, "parts": ["nothing"]}, {"step": 1, "rank": 3}],
        "load_model": [{"source": tmp}, {"source": run.path / "checkpoints" / "step-000000009"}],
        "export": [
            exports | {"source": tmp},
            exports | {"target": there},
            exports | {"target": tmp / "x.bin"},
            exports | {"format": "kohya"},
            exports | {"merge": True},
            exports | {"dtype": "int8"},
            exports | {"source": plain},
        ],
        "check_attention": [{"step": lambda: None}, {"step": lambda: None, "device": "cuda:99"}],
        "plan": [{"dataset": sample_dataset(), "epoch": -1}, {"dataset": sample_dataset(), "world_size": 0}],
        "objectives.RectifiedFlow": [
            {"shift": -1},
            {"timestep_range": [900, 100]},
            {"noise_offset": 0.1},
            {"name": "epsilon"},
            {"nope": 1},
            {"mode_scale": 1.0},
            {"config": ObjectiveConfig(name="iddpm")},
        ],
        "objectives.Ddpm": [{"prediction": "x0"}, {"prediction": "v", "config": ObjectiveConfig(name="epsilon")}],
        "samplers.flow": [sampler | {"velocity": torch.add}, {"velocity": torch.add, "noise": NOISE, "steps": 0}],
        "samplers.ddim": [
            sampler | one,
            one | {"noise": NOISE, "steps": 1001},
            one | {"noise": NOISE, "zero_terminal_snr": True},
        ],
        "samplers.iddpm": [sampler | one, one | {"noise": NOISE, "steps": 1}],
    }


def fields_within(value: object) -> Iterator[str]:
    """Arguments of the objects that are given, which a refusal may name as well."""
    for one in value if isinstance(value, list | tuple) else [value]:
        if type(one).__module__.startswith("reelworks"):
            yield from inspect.signature(type(one)).parameters
            if isinstance(one, rw.DataSpec):
                yield from fields_within(one.datasets)


# They take objects alone, raise ValueError of their own, or name the keys of a recipe.
WITHOUT_REFUSALS = {"objectives.Iddpm", "objectives.from_config", "testing.assert_exact_resume", "train"}


def test_a_refusal_names_an_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store, others = rw.CheckpointStore(tmp_path / "store"), []
    store.save(1, {"a": 1})
    calls = refusals(tmp_path)
    assert calls.keys() == public().keys() - WITHOUT_REFUSALS
    for name, all_given in calls.items():
        of_store = name.startswith("CheckpointStore.")
        function = getattr(store, name.partition(".")[2]) if of_store else public()[name]
        parameters = inspect.signature(function).parameters
        takes_keys = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        for given in all_given:
            # Settings are keywords too, and what a state holds is named by its place in it.
            named = {*parameters, *(given if takes_keys else ()), *given.get("state", {}), *given.get("parts", ())}
            named |= {field for value in given.values() for field in fields_within(value)}
            try:
                others.append(f"{name} took {given}: {function(**given)}")
            except UserError as error:
                if (error.field or "").partition(".")[0] not in named:
                    others.append(f"{name}: {error}")
    assert not others, "\n".join(others)
