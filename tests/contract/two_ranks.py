"""A rank of two: every family sharded by FSDP2, and adapters, their gradients beside those of one process.

Run by test_denoisers.py with the families' names; prints those that agree.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings

import torch

from reelworks.data.distributed import mesh
from reelworks.data.distributed.layout import Layout
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.config import ModelConfig
from reelworks.models.expert_pair.config import switch_timestep
from reelworks.models.precision.boundary import DtypeBoundary
from reelworks.testing import contract

warnings.filterwarnings("ignore", message=".*returned a view tensor.*")


def gradients(denoiser, inputs):
    torch.autograd.backward(DtypeBoundary(denoiser)(inputs).square().mean())
    found = {}
    for name, p in denoiser.module.named_parameters():
        if p.grad is not None:
            found[name] = p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
    return found


def check(name, world, strategy="fsdp", **kinds):
    inputs = contract.example(contract.shapes(name)[-1], name)
    if switch_timestep(ModelConfig(name=name)):  # all clips of a step are one expert's
        inputs = dataclasses.replace(inputs, time=torch.full_like(inputs.time, 900.0))
    wanted = gradients(contract.build(name, **kinds), inputs)
    sharded = contract.build(name, **kinds)
    mesh.shard(
        sharded.module, sharded.sharding().units, sharded.contract, world, Layout.from_strategy(strategy, world.size)
    )
    own = inputs.each(lambda value: value[world.rank : world.rank + 1])
    found = gradients(sharded, own)
    assert found.keys() == wanted.keys(), (name, found.keys() ^ wanted.keys())
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=1e-3, atol=1e-5, msg=lambda m, k=key: f"{name} {k}: {m}")


def check_lowered(name, world):
    """A base in bfloat16 beside a LoRA in float32, whose gradients come back so; products as in decision 004."""
    kinds = {"compute": torch.bfloat16, "lora": LoraConfig(rank=2, base="bfloat16")}
    inputs = contract.example(contract.shapes(name)[-1], name)
    wanted = gradients(contract.build(name, **kinds), inputs)
    sharded = contract.build(name, **kinds)
    mesh.shard(
        sharded.module, sharded.sharding().units, sharded.contract, world, Layout.from_strategy("fsdp", world.size)
    )
    stored = {p.dtype for p in sharded.module.parameters()}
    assert stored == {torch.bfloat16, torch.float32}, stored
    own = inputs.each(lambda value: value[world.rank : world.rank + 1])
    found = gradients(sharded, own)
    assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
    for key, value in wanted.items():
        assert found[key].dtype == torch.float32, key
        assert (found[key] - value).norm() <= 0.1 * value.norm(), key


with mesh.join() as world:
    for family in sys.argv[1:]:
        check(family, world)
        if world.is_main:
            print(family, flush=True)
    check("wan-tiny", world, lora=LoraConfig(rank=2, targets=["to_q", "net.2"]))
    check("flux-tiny", world, lora=LoraConfig(rank=2, dora=True))
    check("wan-tiny", world, lora=LoraConfig(rank=2, base="int8"))
    check("flux-tiny", world, "replicated", lora=LoraConfig(rank=2, base="nf4"))
    for adapter in (contract.tiny_lora(kind) for kind in ("lokr", "loha", "oft")):
        check("wan-tiny", world, lora=adapter)
        check("wan-tiny", world, "replicated", lora=adapter.model_copy(update={"base": "nf4"}))
    check("stdit3-tiny", world, gradient_checkpointing="selective")
    check_lowered("wan-tiny", world)
    check("wan-tiny", dataclasses.replace(world, offload=True), lora=LoraConfig(rank=2))
