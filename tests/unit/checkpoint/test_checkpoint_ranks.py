"""A checkpoint of one process loads in two and the other way round; two ranks fail as one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoint_rank import build, state_of
from safetensors.torch import load_file

from reelworks.core import system
from reelworks.data.checkpoint import save
from reelworks.data.checkpoint.folder import CheckpointFolder
from reelworks.data.checkpoint.load import load
from reelworks.data.checkpoint.verify import verify


def plain() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = build()
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def run_two_ranks(folder: Path) -> None:
    if system.WINDOWS:
        pytest.skip("both ranks are forks of one process, which Windows lacks")
    script = Path(__file__).with_name("checkpoint_rank.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-W", "error", script, folder], env=environment, check=True, timeout=300)


def texts(folder: Path, name: str) -> list[str]:
    return [(folder / f"{name}{rank}.txt").read_text(encoding="utf-8") for rank in range(2)]


@pytest.mark.slow
def test_one_process_to_two_and_back(tmp_path: Path) -> None:
    store = CheckpointFolder(tmp_path / "checkpoints")
    model, optimizer = plain()
    step(model, optimizer)
    save.save(store, 10, state_of(model, optimizer))
    run_two_ranks(tmp_path)

    errors = texts(tmp_path, "error")
    assert errors[0] == errors[1]
    assert "rank 1: OSError: [Errno 28] No space left on device" in errors[0]
    assert "rank 0" not in errors[0]
    assert texts(tmp_path, "left") == ["history.jsonl latest step-000000010"] * 2
    refused = texts(tmp_path, "refused")
    assert refused[0] == refused[1]
    assert "model.other: [2] expected, none in the checkpoint" in refused[0]

    saved = texts(tmp_path, "saved")
    info = store.info(20)
    assert saved == [f"{info.manifest.save_id} True"] * 2
    verify(info.path, full=True)
    assert info.manifest.world_size == 2
    assert {"tensors/rank-00000.safetensors", "tensors/rank-00001.safetensors"} <= {
        entry.path for entry in info.manifest.files
    }
    assert info.manifest.total_bytes <= sum(map(int, texts(tmp_path, "bytes")))

    # Two ranks went on from the plain checkpoint exactly as one process does.
    step(model, optimizer)
    other, other_optimizer = plain()
    state = state_of(other, other_optimizer)
    load(info.path, state)
    expected = torch.load(tmp_path / "expected.pt", weights_only=True)
    for name, value in model.state_dict().items():
        assert torch.equal(expected[name], value)
        assert torch.equal(other.state_dict()[name], value)
    exported = load_file(tmp_path / "exported.safetensors")
    assert exported.keys() == expected.keys()
    assert all(torch.equal(exported[name], 2 * value) for name, value in expected.items())
    unexported = texts(tmp_path, "unexported")
    assert unexported[0] == unexported[1]
    assert "rank 0: OSError: [Errno 28] No space left on device" in unexported[0]
    reference = state_of(model, optimizer)["optimizer"]["state"]
    for name, values in reference.items():
        for key, value in values.items():
            assert torch.equal(state["optimizer"]["state"][name][key], value)
    assert torch.equal(state["replicated"], torch.arange(7))
