"""Checks of the dtypes of parameters and buffers in memory against a contract."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from reelworks.precision.boundary import DtypeError
from reelworks.precision.contract import Contract, name_of

PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # these round their weights to the compute dtype anyway


def faults(module: nn.Module, contract: Contract, units: Sequence[nn.Module] = ()) -> Iterator[DtypeError]:
    """Compare the stored dtypes of a module with its contract.

    Parameters must have the storage dtype; trained ones may have the master dtype, and those of products in a base under
    a LoRA the compute dtype. Buffers and parameters of components that are not trained have the storage dtype or float32.
    Buffers of 8 bits and less are not checked: they are codes of quantised weights.

    Trained parameters of each of `units`, which FSDP will shard as one, must agree.
    """
    products = {id(p) for child in module.modules() if isinstance(child, PRODUCTS) for p in child.parameters()}
    for name, parameter in module.named_parameters():
        trained, frozen = parameter.requires_grad, contract.master is None
        allowed = {contract.storage, contract.master if trained else torch.float32 if frozen else None}
        if contract.base is not None and not trained and id(parameter) in products:
            allowed.add(contract.compute)
        if parameter.is_floating_point() and parameter.dtype not in allowed:
            yield _fault(name, "a parameter", parameter, contract.storage)
    for name, buffer in module.named_buffers():
        wide = buffer.is_floating_point() and buffer.dtype.itemsize > 1
        if wide and buffer.dtype not in (contract.storage, torch.float32):
            yield _fault(name, "a buffer", buffer, contract.storage)
        if buffer.is_complex() and buffer.dtype != torch.complex64:
            yield _fault(name, "a buffer", buffer, torch.complex64)
    if units:
        yield from _mixed_units(module, units)


def _mixed_units(module: nn.Module, units: Sequence[nn.Module]) -> Iterator[DtypeError]:
    """Yield trained parameters that differ from most of their unit; those outside all units form one more."""
    left = {id(p): (name, p) for name, p in module.named_parameters() if p.requires_grad}
    for unit in (*units, module):
        held = [left.pop(id(p)) for p in unit.parameters() if id(p) in left]
        usual = Counter(p.dtype for _, p in held).most_common(1)
        for name, parameter in held:
            if parameter.dtype != (most := usual[0][0]):
                yield DtypeError(
                    f"a trained parameter of {name_of(parameter.dtype)} in a unit ({type(unit).__name__}) of {name_of(most)}: "
                    f"FSDP takes one dtype in each unit",
                    field=name,
                    remedy=f"store it as {name_of(most)}, or make it a unit of its own in the sharding plan",
                    found=parameter.dtype,
                    declared=most,
                )


def _fault(name: str, what: str, tensor: Tensor, declared: torch.dtype) -> DtypeError:
    return DtypeError(
        f"{what} is stored as {name_of(tensor.dtype)}, but {name_of(declared)} is declared",
        field=name,
        remedy=f"load and build it as {name_of(declared)}",
        found=tensor.dtype,
        declared=declared,
    )
