"""A start audits what never passed, and nothing that did."""

from __future__ import annotations

import abc
import dataclasses
import os
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from reelworks.data.distributed.contract import Contract, Role
from reelworks.models.diffusers_denoiser import lower_input
from reelworks.models.precision import audited
from reelworks.training.memory import dry_run

F32 = torch.float32


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.ModuleList([nn.Linear(4, 4), nn.LayerNorm(4)])
        self.options = {"upcast": [1, None], "config": SimpleNamespace(heads=2)}


@dataclass
class Network:
    module: Layers = field(default_factory=Layers)
    contract: Contract = field(default_factory=lambda: Contract(F32, F32, None, F32, F32, {}))
    strength: float = 1.0

    def predict(self, inputs: Inputs) -> Tensor:
        raise NotImplementedError

    def sharding(self) -> SimpleNamespace:
        return SimpleNamespace(units=())


@dataclass
class Inputs:
    latent: Tensor = field(default_factory=lambda: torch.zeros(1, 4))


def key(network: Network, *inputs: Inputs, sharded: bool = False, units: tuple[nn.Module, ...] = ()) -> str | None:
    return audited.key_of(network, inputs or (Inputs(),), sharded=sharded, units=units)


def test_equal_models_have_one_key_and_any_difference_another():
    changes = {
        "dtype of a layer": lambda n: n.module.first.to(torch.bfloat16),
        "gradient": lambda n: n.module.first.requires_grad_(False),
        "width": lambda n: setattr(n.module, "first", nn.Linear(4, 5)),
        "kind": lambda n: n.module.second.append(nn.SiLU()),
        "setting of a layer": lambda n: setattr(n.module.second[1], "eps", 1e-3),
        "setting deep inside": lambda n: setattr(n.module.options["config"], "heads", 4),
        "mode": lambda n: n.module.eval(),
        "contract": lambda n: setattr(n, "contract", dataclasses.replace(n.contract, compute=torch.bfloat16)),
        "function": lambda n: n.module.options.update(activation=nn.functional.silu),
        "arguments of a function": lambda n: n.module.options.update(
            activation=partial(nn.functional.gelu, approximate="tanh")
        ),
        "other arguments": lambda n: n.module.options.update(activation=partial(nn.functional.gelu)),
        "setting of the model": lambda n: setattr(n, "strength", 2.0),
        "hook of this program": lambda n: n.module.first.register_forward_pre_hook(lower_input),
        "weights of fewer bits": lambda n: n.module.register_buffer("codes", torch.zeros(4, dtype=torch.uint8)),
    }
    keys = {"none": key(Network())}
    assert key(Network()) == keys["none"]
    for name, change in changes.items():
        change(network := Network())
        keys[name] = key(network)
    keys["shape"] = key(Network(), Inputs(torch.zeros(1, 5)))
    keys["dtype of an input"] = key(Network(), Inputs(torch.zeros(1, 4, dtype=torch.bfloat16)))
    keys["another shape too"] = key(Network(), Inputs(), Inputs(torch.zeros(1, 5)))
    keys["sharded"] = key(Network(), sharded=True)
    keys["sharded by layers"] = key(network := Network(), sharded=True, units=(network.module.first,))
    assert None not in keys.values()
    assert len(set(keys.values())) == len(keys)


def test_code_that_changed_is_audited_again(tmp_path, monkeypatch):
    before = key(Network())
    (tmp_path / "file.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(audited, "_PROGRAM", tmp_path)
    monkeypatch.setattr(audited, "_program", audited._program.__wrapped__)  # as in three processes
    other = key(Network())
    os.utime(tmp_path / "file.py", ns=(1, 1))
    assert len({before, other, key(Network())}) == 3


def test_modules_without_a_file_are_no_hindrance(tmp_path, monkeypatch):
    """Those of a Python that others embed lie in an archive, and say of themselves where they would lie elsewhere."""
    monkeypatch.setattr(abc, "__file__", str(tmp_path / "python313.zip" / "abc.py"))

    class Abstract(Network, abc.ABC):
        pass

    assert key(Abstract()) == key(Abstract()) is not None


def test_what_a_key_cannot_tell_is_audited_at_each_start():
    network = Network()
    network.module.first.forward = lambda x: x
    assert key(network) is None
    network = Network()
    network.module.first.register_forward_hook(lambda *_: None)
    assert key(network) is None
    network = Network()
    network.module.options["activation"] = lambda x: x
    assert key(network) is None
    assert audited.find(None) is None


@pytest.fixture
def starts(monkeypatch, tmp_path):
    """Start trainings of a network, and return how often it was audited."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(dry_run, "examples", lambda *_: [Inputs()])
    runs = []

    def start(fault: Exception | None = None, network: Network | None = None) -> int:
        def faults(*_: object, **__: object):
            runs.append(1)
            return iter([fault] if fault else [])

        monkeypatch.setattr(dry_run.audit, "faults", faults)
        network = network or Network()
        dry_run.audit_shapes(network, None, None, SimpleNamespace(rank=0, size=1, shards=False))
        return len(runs)

    return start


def test_what_passed_is_not_audited_at_the_next_start_and_what_failed_is(starts):
    for _ in range(2):
        with pytest.raises(ValueError, match="a fault"):
            starts(ValueError("a fault"))
    assert starts() == 3
    assert starts() == 3
    (network := Network()).module.first.to(torch.bfloat16)
    assert starts(network=network) == 4


@pytest.mark.parametrize("shapes", [1, 2])
def test_a_network_that_needs_numbers_starts_and_it_is_told_what_is_not_checked(monkeypatch, caplog, shapes):
    monkeypatch.setattr(dry_run, "examples", lambda *_: [Inputs(torch.zeros(n + 1, 4)) for n in range(shapes)])

    def predict(self: Network, inputs: Inputs) -> Tensor:
        return inputs.latent * (inputs.latent.max().item() if len(inputs.latent) == shapes else 1.0)

    monkeypatch.setattr(Network, "predict", predict)
    roles = {"latent": Role.LATENT}
    network = Network(contract=Contract(F32, F32, None, F32, F32, roles))
    dry_run.audit_shapes(network, None, None, SimpleNamespace(rank=0, size=1, shards=False))
    assert network.runs_on_meta is False
    assert "Layers does not run without numbers (RuntimeError: Tensor.item()" in caplog.text


def test_a_cache_that_cannot_be_written_costs_time_alone_and_old_keys_go(starts, monkeypatch, tmp_path):
    monkeypatch.setattr(audited, "_MOST_KEPT", 2)
    for name in "abc":
        audited.note(name)
        os.utime(tmp_path / "reelworks/audited" / name, ns=(ord(name), ord(name)))
    audited.note("d")
    assert [audited.find(name) for name in "abcd"] == [None, None, "", ""]
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert starts() == 1
    assert starts() == 2
