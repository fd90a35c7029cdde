"""Training on after a load equals training that was never interrupted, to the bit, for every optimizer there is here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_helpers import assert_equal
from refused import refused
from torch import Tensor, nn

import reelworks as rw
from reelworks.data.checkpoint import tree

Make = Callable[[Iterable[nn.Parameter]], Any]


class TenLines(torch.optim.Optimizer):
    """Keeps whatever one may keep: counts, texts, lists, tensors of integers and of other dtypes than the weights'."""

    def __init__(self, weights: Iterable[nn.Parameter]) -> None:
        super().__init__(weights, {"lr": 0.1, "history": [], "mode": "plain"})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for weight in (weight for weight in group["params"] if weight.grad is not None):
                state = self.state[weight]
                state["count"] = state.get("count", 0) + 1
                state["label"] = f"step {state['count']}"
                state["norms"] = [*state.get("norms", []), weight.grad.norm()]
                state["pair"] = (state["count"], torch.tensor([state["count"]]))
                state["wide"] = state.get("wide", weight.double() * 0) + weight.grad.double()
                state["seen"] = state.get("seen", torch.zeros(2, dtype=torch.int64)) + 2**60 + 1
                state["later"] = None if state["count"] < 3 else weight.grad.clone()
                scale = group["lr"] / state["count"] + int(state["seen"][0] % 3) + len(state["label"]) / 1000
                weight -= (scale * state["wide"]).to(weight.dtype)
            group["history"] = [*group["history"], group["mode"]]
            group["mode"] = "plain" if group["mode"] == "odd" else "odd"


def torch_optimizers() -> dict[str, Make]:
    optim = torch.optim
    return {
        "Adadelta": lambda w: optim.Adadelta(w, lr=0.1),
        "Adafactor": lambda w: optim.Adafactor(w, lr=0.1),
        "Adagrad": lambda w: optim.Adagrad(w, lr=0.1),
        "Adam": lambda w: optim.Adam(w, lr=0.1),
        "AdamW, amsgrad": lambda w: optim.AdamW(w, lr=0.1, amsgrad=True),
        "AdamW, fused": lambda w: optim.AdamW(w, lr=0.1, fused=True),
        "AdamW, rate in a tensor": lambda w: optim.AdamW(w, lr=torch.tensor(0.1), foreach=False),
        "Adamax": lambda w: optim.Adamax(w, lr=0.1),
        "ASGD": lambda w: optim.ASGD(w, lr=0.1),
        "LBFGS": lambda w: optim.LBFGS(w, lr=0.1, max_iter=3),
        "Muon": lambda w: optim.Muon([weight for weight in w if weight.ndim == 2], lr=0.1),
        "NAdam": lambda w: optim.NAdam(w, lr=0.1),
        "RAdam": lambda w: optim.RAdam(w, lr=0.1),
        "RMSprop": lambda w: optim.RMSprop(w, lr=0.1, momentum=0.5, centered=True),
        "Rprop": lambda w: optim.Rprop(w, lr=0.1),
        "SGD": lambda w: optim.SGD(w, lr=0.1),
        "SGD, momentum": lambda w: optim.SGD(w, lr=0.1, momentum=0.9),
    }


def other_optimizers() -> dict[str, Make]:
    def of(module: str, name: str, **settings: Any) -> Make:
        return lambda w: getattr(pytest.importorskip(module), name)(w, **settings)

    small = {"lr": 0.1, "min_8bit_size": 16}
    return {
        "bitsandbytes AdamW8bit": of("bitsandbytes.optim", "AdamW8bit", **small),
        "bitsandbytes Lion8bit": of("bitsandbytes.optim", "Lion8bit", **small),
        "bitsandbytes AdEMAMix": of("bitsandbytes.optim", "AdEMAMix", lr=0.1),
        "transformers Adafactor": of("transformers.optimization", "Adafactor", lr=0.01, relative_step=False),
        "CAME": of("came_pytorch", "CAME", lr=0.01),
        "Prodigy": of("prodigyopt", "Prodigy"),
        "schedule-free AdamW": of("schedulefree", "AdamWScheduleFree", lr=0.1),
        "schedule-free SGD": of("schedulefree", "SGDScheduleFree", lr=0.1),
        "ten lines": TenLines,
    }


OPTIMIZERS = torch_optimizers() | other_optimizers()


class Training:
    """A small network with a weight that is frozen, and one that never has a gradient."""

    def __init__(self, make: Make, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
        self.model.unused = nn.Parameter(torch.ones(4, 4))
        self.model.to(dtype)
        self.model[0].bias.requires_grad_(False)
        self.optimizer = make([weight for weight in self.model.parameters() if weight.requires_grad])
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step))
        self.steps = 0

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.steps += 1
            if hasattr(self.optimizer, "train"):
                self.optimizer.train()
            if isinstance(self.optimizer, torch.optim.LBFGS):
                self.optimizer.step(self.gradients)
            else:
                self.gradients()
                self.optimizer.step()
            self.scheduler.step()

    def gradients(self) -> Tensor:
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(self.steps))
        self.optimizer.zero_grad()
        loss = self.model(x.to(self.model[2].weight.dtype)).square().mean()
        loss.backward()
        return loss


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.quick_cases(1)
def test_training_on_after_a_load_equals_the_uninterrupted_run(name: str, tmp_path: Path) -> None:
    """Saved before the first step and after two, loaded into a fresh one and into one that has gone further."""
    warnings.filterwarnings("ignore", "MatMul8bitLt|.*kernels.*")
    straight = Training(OPTIMIZERS[name])
    store = rw.CheckpointStore(tmp_path)
    states = {}
    for step in range(5):
        store.save(step, straight.state)
        states[step] = store.read(step)
        straight.step()
    for begin in (0, 1, 3):
        for walked in (0, 2):
            resumed = Training(OPTIMIZERS[name])
            resumed.step(walked)
            store.load(begin, resumed.state)
            resumed.steps = begin
            again = {part: held.state_dict() for part, held in resumed.state.items()}
            assert_equal(plain(again), plain(states[begin]))
            resumed.step(5 - begin)
            assert_equal(plain(resumed.model.state_dict()), plain(straight.model.state_dict()))
            assert_equal(plain(resumed.optimizer.state_dict()), plain(straight.optimizer.state_dict()))


def plain(value: Any) -> Any:
    """Without the classes of dicts and of parameters, which torch changes by itself."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return type(value)(map(plain, value)) if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("name", ["transformers Adafactor", "CAME", "ten lines", "bitsandbytes AdamW8bit"])
def test_state_that_is_wider_than_the_weights_keeps_its_dtype(name: str, tmp_path: Path) -> None:
    """Torch's own `load_state_dict` rounds it to bfloat16, and counts with it."""
    straight, store = Training(OPTIMIZERS[name], torch.bfloat16), rw.CheckpointStore(tmp_path)
    straight.step(2)
    store.save(2, straight.state)
    resumed = Training(OPTIMIZERS[name], torch.bfloat16)
    assert store.load_latest(resumed.state) == 2
    assert_equal(plain(resumed.optimizer.state_dict()), plain(straight.optimizer.state_dict()))
    resumed.steps = 2
    straight.step(2)
    resumed.step(2)
    assert_equal(plain(resumed.model.state_dict()), plain(straight.model.state_dict()))


def test_weights_of_another_dtype_take_the_state_along(tmp_path: Path) -> None:
    straight, store = Training(OPTIMIZERS["Adam"]), rw.CheckpointStore(tmp_path)
    straight.step(2)
    store.save(2, straight.state)
    narrow = Training(OPTIMIZERS["Adam"], torch.bfloat16)
    store.load_latest(narrow.state)
    assert {v["exp_avg"].dtype for v in narrow.optimizer.state.values()} == {torch.bfloat16}
    narrow.steps = 2
    narrow.step()


def test_an_optimizer_that_forgets_is_told(tmp_path: Path) -> None:
    class Forgetful(TenLines):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict({**state_dict, "state": {}})

    training, store = Training(Forgetful), rw.CheckpointStore(tmp_path)
    training.step()
    store.save(1, training.state)
    with refused("optimizer-not-restored", says="left nothing where|left None where"):
        store.load_latest(Training(Forgetful).state)


def test_an_optimizer_that_forgets_a_part_of_a_list_is_told(tmp_path: Path) -> None:
    class Shortening(TenLines):
        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            super().load_state_dict(state_dict)
            for state in self.state.values():
                state["past"] = state["past"][:1]

    training, store = Training(Shortening), rw.CheckpointStore(tmp_path)
    training.step()
    for state in training.optimizer.state.values():
        state["past"] = [1.0, 2.0]
    store.save(1, training.state)
    with refused("optimizer-not-restored", says=r"left \[1.0\] where \[1.0, 2.0\]"):
        store.load_latest(Training(Shortening).state)


def test_other_groups_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    training, store = Training(OPTIMIZERS["Adam"]), rw.CheckpointStore(tmp_path)
    training.step()
    store.save(1, training.state)
    other = Training(lambda weights: torch.optim.Adam(list(weights)[:2], lr=0.1))
    before = {name: value.clone() for name, value in other.model.state_dict().items()}
    with refused("checkpoint-state-differs", "optimizer", says=r"groups of \[4\] weights, this one of \[2\]"):
        store.load_latest(other.state)
    assert_equal(dict(other.model.state_dict()), before)


def test_an_optimizer_for_each_weight_is_found_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As loops have them that step in the backward pass; a pass for each takes minutes for hundreds."""
    passes, leaves = [0], tree.leaves

    def counted(node: Any, path: tree.Path = ()) -> Any:
        passes[0] += not path
        return leaves(node, path)

    seen = []
    monkeypatch.setattr(tree, "leaves", counted)
    for number in (2, 20):
        store = rw.CheckpointStore(tmp_path / str(number))
        optimizers = [torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1 * i) for i in range(number)]
        store.save(1, {"all": optimizers})
        others = [torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=9.0) for _ in range(number)]
        passes[0] = 0
        store.load_latest({"all": others})
        seen.append(passes[0])
        assert [other.param_groups[0]["lr"] for other in others] == [0.1 * i for i in range(number)]
    assert seen[0] == seen[1]
