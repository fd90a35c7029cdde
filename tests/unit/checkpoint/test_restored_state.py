"""What was saved is what comes back: values, their types, the types of keys, into whatever is there."""

from __future__ import annotations

import math
import random
import re
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import second_device
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refused import refused
from safetensors.torch import load_file
from torch import Tensor, nn

import reelworks as rw
from reelworks.data.checkpoint import state_file
from reelworks.data.checkpoint.save import SaveFailed

DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool,
    torch.complex64, torch.complex128, torch.uint16, torch.float8_e4m3fn, torch.float8_e5m2fnuz,
]  # fmt: skip


def test_ranks_tell_tensors_of_other_values_apart_wherever_these_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also values in another order, which have the same sum."""
    numbers = torch.arange(24.0)
    others = [numbers.flip(0), numbers.roll(1), numbers + 1, numbers.view(4, 6), numbers.view(torch.int32)]
    for device in (torch.device("cpu"), second_device.use(monkeypatch)):
        prints = [state_file._print(each.to(device)) for each in (numbers, *others)]
        assert len({*prints}) == len(prints)
        assert state_file._print(numbers.clone().to(device)) == prints[0]


def test_modules_of_a_part_that_is_of_each_rank_keep_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a part that is the same but for these, the first rank's are stored."""
    told, met, own = [None, None], threading.Barrier(2, timeout=60), threading.local()

    def gather(value: Any) -> list[Any]:
        told[own.rank] = value
        met.wait()
        gathered = [*told]
        met.wait()
        return gathered

    def stored(rank: int) -> list[int]:
        own.rank = rank
        counts = []
        for of_rank in (rank, 0):
            module = torch.nn.Linear(1, 1)
            torch.nn.init.constant_(module.weight, rank)
            torch.nn.init.zeros_(module.bias)
            counts.append(len(state_file.encode({"part": {"net": module, "number": of_rank}}).tensors))
        return counts

    for name, meant in {"gather": gather, "world_size": lambda: 2, "each": lambda work: work()}.items():
        monkeypatch.setattr(state_file.collectives, name, meant)
    with ThreadPoolExecutor(2) as ranks:
        assert list(ranks.map(stored, range(2))) == [[2, 2], [2, 1]]


def test_a_value_may_stand_at_several_places(tmp_path: Path) -> None:
    shared = [1, 2]
    rw.CheckpointStore(tmp_path).save(1, {"a": {"here": shared, "there": shared}})
    state: dict[str, Any] = {"a": {}}
    rw.CheckpointStore(tmp_path).load_latest(state)
    assert state["a"] == {"here": shared, "there": shared}


def same(a: Any, b: Any) -> bool:
    """Whether two values are of the same types and equal to the bit, in the same order."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        flat = [x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (a, b)]
        return (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad) and torch.equal(*flat)
    if isinstance(a, np.ndarray | np.generic):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, Mapping):
        pairs = zip(a.items(), b.items(), strict=False)
        equal = len(a) == len(b) and all(same(k, m) and same(v, w) for (k, v), (m, w) in pairs)
        return equal and getattr(a, "default_factory", None) is getattr(b, "default_factory", None)
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and all(map(same, a, b)) and getattr(a, "maxlen", 0) == getattr(b, "maxlen", 0)
    if isinstance(a, set | frozenset):
        return a == b and {*map(type, a)} == {*map(type, b)}
    if isinstance(a, float | complex):
        return repr(a) == repr(b)
    return bool(a == b)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    data = draw(st.binary(min_size=1, max_size=8))
    size = math.prod(shape) * dtype.itemsize
    flat = torch.frombuffer(bytearray((data * (size + 1))[: max(size, 1)]), dtype=torch.uint8)[:size]
    made = (flat & 1).view(torch.bool) if dtype == torch.bool else flat.clone().view(dtype)
    return made.reshape(shape)


FLOATS = st.floats() | st.sampled_from([-0.0, math.inf, math.nan, 5e-324])
PLAIN = (
    st.none() | st.booleans() | FLOATS | st.integers() | st.integers(-(2**200), 2**200) | st.text(max_size=5)
    | st.binary(max_size=4) | st.complex_numbers(allow_nan=False) | st.just(b"x" * 5000)
)  # fmt: skip
KEYS = (
    st.text(max_size=3)
    | st.integers(-2, 9)
    | st.booleans()
    | st.none()
    | st.tuples(st.integers(0, 1), st.text(max_size=1))
)
ARRAYS = st.sampled_from([
    np.arange(6, dtype=np.int16).reshape(2, 3), np.zeros(0), np.array(["a", "bcd"]), np.float32(0.1), np.int64(3),
    np.asfortranarray(np.eye(3)), np.array(True), np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    np.array("2026-01-02", dtype="M8[D]"), np.arange(4, dtype=">i4"), np.arange(600.0), np.str_("x"), np.bool_(True),
])  # fmt: skip
OTHERS = st.sampled_from(
    [torch.float16, torch.Size([2, 3]), torch.device("cpu"), bytearray(b"ab"), random.Random(0).getstate()]
)
LEAVES = PLAIN | tensors() | ARRAYS | OTHERS


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    dicts = st.dictionaries(KEYS, inner, max_size=3)
    lists = st.lists(inner, max_size=3)
    hashable = st.lists(st.integers() | st.text(max_size=2) | st.tuples(st.integers()), max_size=3)
    return (
        dicts | lists | lists.map(tuple) | lists.map(lambda v: deque(v, maxlen=4)) | dicts.map(OrderedDict)
        | dicts.map(lambda v: defaultdict(list, v)) | hashable.map(set) | hashable.map(frozenset) | hashable.map(Counter)
    )  # fmt: skip


TREES = st.recursive(LEAVES, containers, max_leaves=8)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(saved=TREES, there=TREES)
@pytest.mark.slow
def test_any_tree_of_values_comes_back(tmp_path: Path, saved: Any, there: Any) -> None:
    """Read without a template, loaded into nothing, into an equal value and into any other."""
    store = rw.CheckpointStore(tmp_path)
    store.save(1, {"part": saved, "inside": {"of": [saved]}})
    assert same(store.read(1), {"part": saved, "inside": {"of": [saved]}})
    for live in (None, saved, there):
        state = {"part": live, "inside": {"of": [live, 5]}}
        store.load(1, state)
        assert same(state, {"part": saved, "inside": {"of": [saved]}})


def test_what_is_there_is_filled_in_place(tmp_path: Path) -> None:
    """Others may hold the same objects."""
    store = rw.CheckpointStore(tmp_path)
    store.save(1, {"ema": {"w": torch.ones(2), "more": [torch.ones(3)]}, "seen": np.ones(3), "losses": [1.0, 2.0]})
    weight, inner, seen, losses = torch.zeros(2), torch.zeros(3), np.zeros(3), [9.0]
    average = {"w": weight, "more": [inner], "gone": 1}
    state = {"ema": average, "seen": seen, "losses": losses}
    assert store.load_latest(state) == 1
    assert state["ema"] is average
    assert state["seen"] is seen
    assert state["losses"] is losses
    assert average["w"] is weight
    assert average["more"][0] is inner
    assert average.keys() == {"w", "more"}
    assert weight.tolist() == [1, 1]
    assert inner.tolist() == [1, 1, 1]
    assert seen.tolist() == [1, 1, 1]
    assert losses == [1.0, 2.0]


@pytest.mark.parametrize("there", [deque([1], maxlen=3), deque([1]), deque([1], maxlen=5), [1]])
def test_a_queue_has_the_length_that_was_saved(tmp_path: Path, there: Any) -> None:
    store, saved = rw.CheckpointStore(tmp_path), deque(range(5), maxlen=5)
    store.save(1, {"recent": saved})
    store.load(1, state := {"recent": there})
    assert (state["recent"], state["recent"].maxlen) == (saved, 5)


class Grows:
    """An object without a fixed structure."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}

    def state_dict(self) -> dict[Any, Any]:
        return self.values

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        self.values = state


STAGES: list[dict[Any, Any]] = [
    {},
    {"buffer": None, 0: 1, "losses": []},
    {"buffer": torch.arange(3), 0: "text", "0": torch.zeros(1), "losses": [torch.ones(1)], (1, 2): {3: 4.5}},
    {
        "buffer": torch.arange(9),
        "losses": [torch.ones(2), None, np.arange(2)],
        "new": {"a": [{"b": (1, torch.ones(1))}]},
    },
]


@pytest.mark.parametrize("there", range(4))
@pytest.mark.parametrize("saved", range(4))
def test_objects_that_grow_get_what_they_had(tmp_path: Path, saved: int, there: int) -> None:
    """Whatever the object holds by then, alone, in a dict and in a list."""
    store, held = rw.CheckpointStore(tmp_path), [Grows(), Grows(), Grows()]
    for one in held:
        one.values = STAGES[saved]
    store.save(1, {"one": held[0], "by": {"name": held[1], "lists": [held[2], 5]}})
    fresh = [Grows(), Grows(), Grows()]
    for one in fresh:
        one.values = STAGES[there]
    state = {"one": fresh[0], "by": {"name": fresh[1], "lists": [fresh[2], 6]}}
    store.load_latest(state)
    assert all(same(one.values, STAGES[saved]) for one in fresh)
    assert [state["one"], state["by"]["name"], *state["by"]["lists"]] == [*fresh, 5]
    assert same(store.read(1)["by"], {"name": STAGES[saved], "lists": [STAGES[saved], 5]})


HOLDERS: list[Callable[[list[Any]], Any]] = [
    list,
    tuple,
    deque,
    lambda objects: dict(enumerate(objects)),
    lambda objects: OrderedDict(enumerate(objects)),
    lambda objects: defaultdict(list, enumerate(objects)),
    lambda objects: MappingProxyType(dict(enumerate(objects))),
    lambda objects: None,
]


@pytest.mark.parametrize("there", range(8))
@pytest.mark.parametrize("saved", range(6))
def test_what_was_saved_at_a_place_is_loaded_into_the_object_there_whatever_holds_it(
    tmp_path: Path, saved: int, there: int
) -> None:
    """Without an object there the state itself is given back, and either can be saved again."""

    def made(rate: float) -> list[Any]:
        net = nn.Linear(2, 2)
        return [net, torch.optim.AdamW(net.parameters(), lr=rate), Grows()]

    objects, live, store = made(0.5), made(0.1), rw.CheckpointStore(tmp_path)
    objects[2].values = STAGES[2]
    store.save(1, {"part": {"in": HOLDERS[saved](objects)}})
    state: dict[str, Any] = {"part": {"in": HOLDERS[there](live)}}
    store.load(1, state)
    inside = state["part"]["in"]
    assert type(inside) is type(HOLDERS[saved]([]))
    found = [inside[i] for i in range(3)]
    if there == 7:
        assert same(found[2], STAGES[2])
    else:
        assert found == live
        assert torch.equal(live[0].weight, objects[0].weight)
        assert live[1].param_groups[0]["lr"] == 0.5
        assert same(live[2].values, STAGES[2])
    store.save(2, state)


@pytest.mark.parametrize("holder", [lambda one: {one}, lambda one: frozenset({(one,)}), lambda one: {one: 1}])
def test_objects_without_a_place_are_refused_at_the_save(tmp_path: Path, holder: Callable[[Any], Any]) -> None:
    """Nothing tells which element of a set, or which key, a state belongs to."""
    with refused("state-not-storable", says="Grows"):
        rw.CheckpointStore(tmp_path).save(1, {"part": holder(Grows())})


def test_objects_of_which_nothing_was_saved_are_refused(tmp_path: Path) -> None:
    """They would keep what they hold, and leave the dict."""
    store = rw.CheckpointStore(tmp_path)
    store.save(1, {"part": {"a": Grows(), (1, "b"): nn.Linear(1, 1)}, "list": [Grows()]})
    store.load(1, {"part": {"a": Grows(), (1, "b"): nn.Linear(1, 1)}, "list": [Grows()]})
    with refused("checkpoint-part-missing", "part.more"):
        store.load(1, {"part": {"a": Grows(), "more": Grows()}})
    with refused("checkpoint-part-missing", "list.1"):
        store.load(1, {"list": [Grows(), Grows()]})


def test_parameters_stay_parameters(tmp_path: Path) -> None:
    store = rw.CheckpointStore(tmp_path)
    store.save(1, {"p": nn.Parameter(torch.ones(2)), "frozen": nn.Parameter(torch.ones(1), requires_grad=False)})
    weight = nn.Parameter(torch.zeros(2))
    state: dict[str, Any] = {"p": weight, "frozen": None}
    store.load_latest(state)
    assert state["p"] is weight
    assert weight.tolist() == [1, 1]
    assert isinstance(state["frozen"], nn.Parameter)
    assert not state["frozen"].requires_grad


@pytest.mark.parametrize("counts", [(2, 0), (0, 2), (0, 0)])
def test_groups_without_weights_are_groups(tmp_path: Path, counts: tuple[int, int]) -> None:
    def optimizer(*counts: int) -> torch.optim.Optimizer:
        return torch.optim.AdamW([{"params": [nn.Parameter(torch.ones(1)) for _ in range(n)]} for n in counts])

    store = rw.CheckpointStore(tmp_path)
    store.save(1, {"optimizer": optimizer(*counts)})
    store.load_latest({"optimizer": optimizer(*counts)})
    for others in [(1, 1), *{(2, 0), (0, 2), (0, 0), (2,)} - {counts}]:
        with refused(
            "checkpoint-state-differs", "optimizer", says=re.escape(f"{[*counts]} weights, this one of {[*others]}")
        ):
            store.load_latest({"optimizer": optimizer(*others)})


def test_a_module_takes_weights_of_another_dtype_and_refuses_another_shape(tmp_path: Path) -> None:
    store = rw.CheckpointStore(tmp_path)
    store.save(1, {"net": nn.Linear(3, 2)})
    narrow = nn.Linear(3, 2, dtype=torch.bfloat16)
    store.load_latest({"net": narrow})
    assert narrow.weight.dtype == torch.bfloat16
    other = nn.Linear(4, 2)
    before = other.weight.clone()
    with refused("checkpoint-state-differs", "checkpoint", says=r"net\.weight: \[2, 4\] expected, \[2, 3\] in"):
        store.load_latest({"net": other})
    assert torch.equal(other.weight, before)
    wrapped = nn.ModuleDict({"module": nn.Linear(3, 2)})
    compiled = torch.compile(nn.Linear(3, 2), backend="eager")
    for live, attribute in ((wrapped, "module"), (compiled, "_orig_mod")):
        with refused("checkpoint-state-differs", "checkpoint", says=f"the module inside.* attribute {attribute} of"):
            store.load_latest({"net": live})


def test_a_module_with_other_state_than_tensors(tmp_path: Path) -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)
            self.seen: Any = None

        def get_extra_state(self) -> Any:
            return self.seen

        def set_extra_state(self, state: Any) -> None:
            self.seen = state

    module, again, store = Counting(), Counting(), rw.CheckpointStore(tmp_path)
    module.norm(torch.randn(4, 2))
    module.seen = {"steps": 3, 4: torch.ones(2)}
    store.save(1, {"module": module})
    store.load_latest({"module": again})
    assert same(again.seen, module.seen)
    assert same(again.norm.state_dict(), module.norm.state_dict())


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (lambda: None, "function"),
        (object(), "object"),
        (np.array([object()]), "Python objects"),
        (torch.ones(2, device="meta"), "meta device"),
        (Grows, "type"),
        (pytest, "module"),
        (defaultdict(lambda: 3), "default_factory"),
    ],
)
def test_what_could_not_be_restored_is_refused_at_the_save(tmp_path: Path, value: Any, says: str) -> None:
    store = rw.CheckpointStore(tmp_path)
    with refused("state-not-storable", "part.deep.1", says=says):
        store.save(1, {"part": {"deep": [0, value]}})
    assert store.steps() == []
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    with refused("state-not-storable", says="contains itself"):
        store.save(1, {"part": cyclic})
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with refused("state-not-storable", says="nested too deeply"):
        store.save(1, {"part": deep})


def test_an_error_of_an_object_is_told(tmp_path: Path) -> None:
    class Broken(Grows):
        def state_dict(self) -> dict[Any, Any]:
            raise KeyError("mine")

        def load_state_dict(self, state: dict[Any, Any]) -> None:
            raise KeyError("mine")

    store = rw.CheckpointStore(tmp_path)
    with pytest.raises(SaveFailed, match="mine"):
        store.save(1, {"part": Broken()})
    store.save(1, {"part": Grows()})
    with pytest.raises(KeyError, match="mine"):
        store.load_latest({"part": Broken()})


def test_parts_are_chosen_by_name(tmp_path: Path) -> None:
    store = rw.CheckpointStore(tmp_path)
    store.save(1, {"a": 1, "b": torch.ones(2), "c": {}})
    assert store.read(1, ["a", "c"]) == {"a": 1, "c": {}}
    state = {"a": None}
    store.load(1, state)
    assert state == {"a": 1}
    with refused("checkpoint-part-missing", "d", says="it has a, b, c"):
        store.load_latest({"d": 1})
    with refused("checkpoint-part-missing", "d"):
        store.read(1, ["d"])
    with refused("state-not-mutable", "a"):
        store.load_latest(MappingProxyType({"a": 0}))  # type: ignore[arg-type]
    for step in (2, -1):
        with refused("no-such-checkpoint", "step"):
            store.load(step, {})
    for wrong in (-1, 1.0, True, "1", None):
        with refused("argument-invalid", "step"):
            store.save(wrong, {})  # type: ignore[arg-type]
    for wrong in (1.0, True, "1", None):
        for read in (store.read, lambda step: store.load(step, {})):
            with refused("argument-invalid", "step"):
                read(wrong)
    saved = store.save(np.int64(3), {"a": 2})  # type: ignore[arg-type]
    assert (type(saved.info.step), store.read(np.int64(3))) == (int, {"a": 2})  # type: ignore[arg-type]


def test_random_generators_go_on_where_they_were(tmp_path: Path) -> None:
    def make(seed: int) -> dict[str, Any]:
        made = torch.Generator().manual_seed(seed)
        return {
            "torch": made,
            "others": [random.Random(seed), np.random.default_rng(seed), np.random.RandomState(seed)],
        }

    def draw(state: dict[str, Any]) -> list[Any]:
        one, two, three = state["others"]
        return [torch.rand(1, generator=state["torch"]).item(), one.random(), two.random(), three.rand()]

    saved, live, store = make(1), make(2), rw.CheckpointStore(tmp_path)
    draw(saved)
    store.save(1, saved)
    generators = [live["torch"], *live["others"]]
    store.load_latest(live)
    assert [live["torch"], *live["others"]] == generators, "in place"
    assert draw(live) == draw(saved)


def test_a_module_without_memory_is_refused(tmp_path: Path) -> None:
    """Torch would load nothing into it, with a warning."""
    store = rw.CheckpointStore(tmp_path)
    store.save(1, {"net": nn.Linear(3, 2)})
    with refused("module-without-memory", "net.weight"):
        store.load_latest({"net": nn.Linear(3, 2, device="meta")})


@pytest.mark.parametrize(
    "live",
    [
        torch.zeros(1, dtype=torch.complex64).expand(3),
        torch.zeros(3, 1, dtype=torch.complex64).expand(3, 2)[:, 0],
        torch.zeros(3, dtype=torch.complex64).conj(),
        torch.zeros(3, 2, dtype=torch.complex64).T[0],
        torch.zeros(6, dtype=torch.complex64)[::2],
    ],
)
def test_a_tensor_is_restored_into_any_view(tmp_path: Path, live: Tensor) -> None:
    """In place where it can be filled."""
    store, saved = rw.CheckpointStore(tmp_path), torch.tensor([1 + 2j, 3j, 4])
    store.save(1, {"x": saved, "inside": [saved.conj().imag], "one": saved[1:2].conj().imag, "wide": live})
    assert store.read(1)["one"].tolist() == [-3]
    state: dict[str, Any] = {"x": live, "inside": [live.conj().imag], "wide": None}
    store.load(1, state)
    assert state["x"].tolist() == saved.tolist()
    assert state["inside"][0].tolist() == saved.conj().imag.tolist()
    assert (state["x"] is live) == (live.stride() != (0,))


@pytest.mark.parametrize("memory", [torch.zeros(16), torch.zeros(16, dtype=torch.complex64).conj(), np.zeros(16)])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (3, 2), (2, 2)])
@pytest.mark.parametrize("strides", [(0, 0), (1, 1), (2, 1), (1, 3), (5, 3), (5, 4)])
def test_values_come_back_into_any_strides_and_from_them(
    tmp_path: Path, memory: Any, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    """Also where numbers share memory, which cannot hold what was saved, and where one number has a stride."""
    if isinstance(memory, Tensor):
        live = memory.clone().as_strided(shape, strides[: len(shape)])
        saved: Any = torch.arange(1.0, 1 + math.prod(shape)).reshape(shape).to(memory.dtype)
    else:
        of_bytes = tuple(stride * memory.itemsize for stride in strides[: len(shape)])
        live = np.lib.stride_tricks.as_strided(memory.copy(), shape, of_bytes)
        saved = np.arange(1.0, 1 + math.prod(shape)).reshape(shape)
    store = rw.CheckpointStore(tmp_path)
    store.save(1, {"x": saved, "view": live, "last": saved[-1:]})
    state = {"x": live}
    assert store.read(1)["last"].tolist() == saved[-1:].tolist()
    assert store.read(1)["view"].tolist() == live.tolist()
    store.load(1, state)
    assert state["x"].tolist() == saved.tolist()


def test_an_object_that_takes_another_state_is_told(tmp_path: Path) -> None:
    store, enabled = rw.CheckpointStore(tmp_path), torch.amp.GradScaler("cpu")
    store.save(1, {"scaler": torch.amp.GradScaler("cpu", enabled=False)})
    with refused("checkpoint-state-differs", "GradScaler", says="empty"):
        store.load_latest({"scaler": enabled})


def test_a_lazy_module_takes_the_shapes_that_were_saved(tmp_path: Path) -> None:
    made, lazy, store = nn.LazyLinear(3), nn.LazyLinear(3), rw.CheckpointStore(tmp_path)
    made(torch.ones(1, 4))
    store.save(1, {"net": made})
    store.load(1, {"net": lazy})
    assert torch.equal(lazy.weight, made.weight)
    with refused("state-not-storable", "net.weight"):
        store.save(2, {"net": nn.LazyLinear(3)})


@pytest.mark.parametrize("state", [nn.Linear(1, 1), [1], None, {0: 1}, "model"])
def test_a_state_that_is_no_dict_is_refused(tmp_path: Path, state: Any) -> None:
    store = rw.CheckpointStore(tmp_path)
    for work in (lambda: store.save(1, state), lambda: store.load_latest(state), lambda: store.load(1, state)):
        with refused("state-invalid", "state"):
            work()
    for wrong in ({"loss": "low"}, {"loss": None}, [1]):
        with refused("metric-invalid", "metrics"):
            store.save(1, {}, metrics=wrong)  # type: ignore[arg-type]
    assert not store.root.exists() or store.steps() == []


def test_names_that_look_alike_are_kept_apart(tmp_path: Path) -> None:
    state = {
        "a": {"b.c": torch.ones(1), "b": {"c": torch.zeros(1)}},
        "a.b": {"c": torch.ones(2)},
        "__metadata__": torch.ones(3),
        "lone \ud800": {"\ud800": torch.ones(1), "\0": 1},
    }
    store = rw.CheckpointStore(tmp_path)
    path = store.save(1, state).info.path
    assert same(store.read(1), state)
    assert len(load_file(path / "tensors" / "rank-00000.safetensors")) == 5, "any reader opens it"
