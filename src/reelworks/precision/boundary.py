"""The boundary at a model's entry: every input is cast by its role, and the output by the contract."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from reelworks.core.errors import UserError
from reelworks.precision.contract import Contract, Role

# Wider dtypes hold all values of narrower ones. float16 is absent: its range needs a loss scaler.
_WIDTH = {torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}


class DtypeError(UserError):
    """A tensor has a dtype that its place does not allow."""


class TensorFields(Protocol):
    """Any dataclass whose fields are tensors."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


InputsT = TypeVar("InputsT", bound=TensorFields)
InputsT_contra = TypeVar("InputsT_contra", bound=TensorFields, contravariant=True)


class Predictor(Protocol[InputsT_contra]):
    """What a boundary wraps: a module behind a `predict` that takes a dataclass of tensors."""

    module: nn.Module
    contract: Contract

    def predict(self, inputs: InputsT_contra) -> Tensor:
        """Run the module on inputs that have the contract's dtypes."""
        ...


def check_contract(contract: Contract) -> None:
    """Refuse combinations of dtypes that cannot train.

    Raises:
        UserError: Names the field, its dtype and what to say instead.
    """
    for name in ("storage", "compute", "master", "reduction", "output"):
        if getattr(contract, name) not in _WIDTH:
            raise UserError(
                "not a dtype to train in; float16 would need a loss scaler, which bfloat16 does not",
                field=f"precision.{name}",
                value=_short(getattr(contract, name)),
                remedy='say "bfloat16" or "float32"',
            )
    _require(contract, "master", "storage", "updates would be rounded away before they are stored")
    _require(contract, "reduction", "compute", "sums over ranks would lose what each rank computed")
    _require(contract, "storage", "compute", "weights cannot give back bits that they do not store")


def _require(contract: Contract, wide: str, narrow: str, why: str) -> None:
    if _WIDTH[getattr(contract, wide)] < _WIDTH[getattr(contract, narrow)]:
        raise UserError(
            f"narrower than {narrow} ({_short(getattr(contract, narrow))}): {why}",
            field=f"precision.{wide}",
            value=_short(getattr(contract, wide)),
            remedy=f"set {wide} to {_short(getattr(contract, narrow))} or wider",
        )


def cast_inputs(inputs: Mapping[str, Tensor], contract: Contract) -> dict[str, Tensor]:
    """Cast inputs by role: latent, text and condition to the compute dtype, time and geometry to
    float32, masks to bool.

    Raises:
        DtypeError: If an input has no role, or a time or size was rounded before it came here.
    """
    return {name: _cast(name, value, contract) for name, value in inputs.items()}


def _cast(name: str, value: Tensor, contract: Contract) -> Tensor:
    if name not in contract.roles:
        raise DtypeError(
            f"this input has no role; roles are declared for {', '.join(contract.roles)}",
            field=name,
            remedy="declare its role in the model's adapter",
        )
    role = contract.roles[name]
    if role in (Role.TIME, Role.GEOMETRY) and value.dtype in (torch.bfloat16, torch.float16):
        # Casting up cannot bring back what was lost: 999 is already 1000.
        raise DtypeError(
            f"an input of role {role} comes as {_short(value.dtype)}, already rounded",
            field=name,
            remedy="make it in float32 or as an integer, and let the boundary cast it",
        )
    return value.to(contract.dtype_of(role))


class Boundary(Generic[InputsT]):
    """Call a model through its contract.

    Inputs are cast by role. Where parameters are stored wider than the compute dtype and nothing else
    lowers them (FSDP's mixed precision does), matrix products run under autocast. What comes out has
    the contract's output dtype.

    Attributes:
        denoiser: What is wrapped; its `contract` is looked up at every call.
    """

    def __init__(self, denoiser: Predictor[InputsT]) -> None:
        """Wrap; raises UserError if the contract cannot train."""
        check_contract(denoiser.contract)
        self.denoiser = denoiser

    def __call__(self, inputs: InputsT) -> Tensor:
        """Return the prediction for a dataclass of tensors.

        Raises:
            DtypeError: If an input has no role or was rounded before it came here.
        """
        contract = self.denoiser.contract
        tensors: dict[str, Tensor] = {f.name: getattr(inputs, f.name) for f in dataclasses.fields(inputs)}
        cast = dataclasses.replace(inputs, **cast_inputs(tensors, contract))
        device = next(iter(tensors.values())).device
        with self._lowered(device):
            out = self.denoiser.predict(cast)
        return out.to(contract.output)

    def _lowered(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        contract = self.denoiser.contract
        if contract.storage == contract.compute or is_sharded(self.denoiser.module):
            return contextlib.nullcontext()
        # Meta tensors go by the CPU's rules: autocast has none of their own.
        return torch.autocast("cpu" if device.type == "meta" else device.type, dtype=contract.compute)


def is_sharded(module: nn.Module) -> bool:
    """Say whether FSDP2 manages the module, and with it the dtype that its parameters have in use."""
    # FSDP takes as long to import as torch itself; where nobody imported it, nothing is sharded.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(isinstance(child, fsdp.FSDPModule) for child in module.modules())


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
