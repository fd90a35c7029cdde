"""The boundary at a model's entry, which casts every input by its role and the output by the contract."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Generic, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from reelworks.core.errors import UserError
from reelworks.data.distributed.contract import Contract, name_of
from reelworks.models.precision import tensors
from reelworks.models.precision.tensors import TensorFields

# Wider dtypes hold all values of narrower ones. float16 is absent: its range needs a loss scaler.
_WIDTH = {torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}
# Functions whose inputs autocast casts to the compute dtype.
LOWERED = frozenset(("linear", "matmul", "mm", "bmm", "baddbmm", "addmm", "einsum", "conv1d", "conv2d", "conv3d"))
ATTENTION = "scaled_dot_product_attention"


class DtypeError(UserError):
    """A tensor has a dtype that is not allowed in its place; `field` is the path of the module, parameter or input."""

    def __init__(
        self,
        problem: str,
        *,
        field: str,
        remedy: str,
        found: torch.dtype | None = None,
        declared: torch.dtype | None = None,
    ) -> None:
        self.found, self.declared = found, declared
        super().__init__(problem, code="dtype-mismatch", field=field, remedy=remedy)


InputsT = TypeVar("InputsT", bound=TensorFields)
InputsT_contra = TypeVar("InputsT_contra", bound=TensorFields, contravariant=True)


class Predictor(Protocol[InputsT_contra]):
    """A model that a boundary can wrap: a module with a `predict` that takes a dataclass of tensors."""

    module: nn.Module
    contract: Contract

    def predict(self, inputs: InputsT_contra) -> Tensor:
        """Run the module on inputs that have the contract's dtypes."""
        ...


def check_contract(contract: Contract, table: str = "precision") -> None:
    """Refuse combinations of dtypes that cannot train; `table` of the recipe configures the component."""
    for name in ("storage", "compute"):
        if getattr(contract, name) in contract.overflows:
            raise UserError(
                "values inside this component exceed the range of the dtype and become infinite",
                code="dtype-overflows",
                field=f"{table}.{name}",
                value=name_of(getattr(contract, name)),
                remedy='set "bfloat16" or "float32"',
            )
    for name in ("storage", "compute", "master", "reduction", "output"):
        dtype = getattr(contract, name)
        if dtype not in _WIDTH and dtype is not None:
            raise UserError(
                "this dtype cannot be trained in; float16 would need a loss scaler, bfloat16 does not",
                code="dtype-not-trainable",
                field=f"{table}.{name}",
                value=name_of(dtype),
                remedy='set "bfloat16" or "float32"',
            )
    if contract.master is not None and contract.master != torch.float32:
        raise UserError(
            "master weights narrower than float32 lose small updates, since they are not rounded stochastically",
            code="master-too-narrow",
            field=f"{table}.master",
            value=name_of(contract.master),
            remedy="set master to float32",
        )
    _require(contract, table, "reduction", "sums over ranks would lose precision of each rank's gradients")
    if contract.master is not None:
        _require(contract, table, "storage", "weights cannot restore bits that they do not store")


def _require(contract: Contract, table: str, wide: str, why: str) -> None:
    wider, narrower = getattr(contract, wide), contract.compute
    if wider is not None and _WIDTH[wider] < _WIDTH[narrower]:
        raise UserError(
            f"narrower than compute ({name_of(narrower)}): {why}",
            code="dtype-narrower",
            field=f"{table}.{wide}",
            value=name_of(wider),
            remedy=f"set {wide} to {name_of(narrower)} or wider",
        )


def cast_input(name: str, value: Tensor, contract: Contract) -> Tensor:
    """Cast latents, text and conditions to the compute dtype, times, geometry and numbers of words to float32, masks to bool.

    Refuses an input without a role, and a time or size that arrives already rounded.
    """
    if name not in contract.roles:
        raise DtypeError(
            f"this input has no role; roles are declared for {', '.join(contract.roles)}",
            field=name,
            remedy="declare its role in the model's adapter",
        )
    role = contract.roles[name]
    if role.is_exact and value.dtype in (torch.bfloat16, torch.float16):
        # Casting up cannot restore the lost precision: 999 is already 1000.
        raise DtypeError(
            f"an input of role {role} arrives as {name_of(value.dtype)}, already rounded",
            field=name,
            remedy="create it in float32 or as an integer, and let the boundary cast it",
            found=value.dtype,
            declared=torch.float32,
        )
    return value.to(contract.dtype_of(role))


class JointPredictor(Protocol[InputsT_contra]):
    """A model that predicts picture and sound."""

    def predict_both(self, inputs: InputsT_contra) -> tuple[Tensor, Tensor]:
        """Run the module on inputs that have the contract's dtypes."""
        ...


class DtypeBoundary(Generic[InputsT]):
    """Call a model through its contract.

    Inputs are cast by role. If parameters are stored wider than the compute dtype and FSDP's mixed precision does not
    lower them, matrix products run under autocast. The output has the contract's output dtype. The contract is read
    at every call.
    """

    def __init__(self, denoiser: Predictor[InputsT]) -> None:
        check_contract(denoiser.contract)
        self.denoiser = denoiser

    def __call__(self, inputs: InputsT) -> Tensor:
        """Return the prediction for a dataclass of tensors; raises `DtypeError` if an input or the output does not fit."""
        lowered, device = self._cast(inputs)
        with self.lowered(device):
            out = self.denoiser.predict(lowered)
        return self._checked(out)

    def both(self, inputs: InputsT) -> tuple[Tensor, Tensor]:
        """Return the predictions for picture and sound, as a call does for the picture; for models with sound."""
        model = cast(JointPredictor[InputsT], self.denoiser)
        lowered, device = self._cast(inputs)
        with self.lowered(device):
            picture, sound = model.predict_both(lowered)
        return self._checked(picture), self._checked(sound)

    def _cast(self, inputs: InputsT) -> tuple[InputsT, torch.device]:
        lowered = tensors.mapped(inputs, lambda name, value: cast_input(name, value, self.denoiser.contract))
        return lowered, tensors.named(inputs)[0][1].device

    def _checked(self, out: Tensor) -> Tensor:
        contract = self.denoiser.contract
        if out.dtype not in (contract.compute, contract.output):
            raise DtypeError(
                f"the model returns {name_of(out.dtype)}, but declares {name_of(contract.output)}",
                field=type(self.denoiser.module).__name__,
                remedy="return the compute or the output dtype, or declare the other one in the adapter",
                found=out.dtype,
                declared=contract.output,
            )
        return out.to(contract.output)

    def lowered(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        """Return autocast to the compute dtype, or a null context if products are lowered otherwise."""
        contract = self.denoiser.contract
        if contract.storage == contract.compute or is_sharded(self.denoiser.module):
            return contextlib.nullcontext()
        if device.type != "meta":
            return torch.autocast(device.type, dtype=contract.compute)
        # Meta tensors follow the CPU's rules: autocast has none for the meta device.
        both = contextlib.ExitStack()
        both.enter_context(torch.autocast("cpu", dtype=contract.compute))
        both.enter_context(MetaAutocast(contract.compute, caches=torch.is_grad_enabled()))
        return both


def is_sharded(module: nn.Module) -> bool:
    """Whether FSDP2 manages a network or the networks in a module, and so the dtype of parameters in the forward pass."""
    # FSDP takes as long to import as torch itself; if it is not imported, nothing is sharded.
    fsdp = sys.modules.get("torch.distributed.fsdp")
    networks = (module, *module.children())  # and not all of their modules, since each forward pass asks
    return fsdp is not None and any(isinstance(network, fsdp.FSDPModule) for network in networks)


class MetaAutocast(TorchFunctionMode):
    """Mode that casts inputs of matrix products, convolutions and attention to the compute dtype.

    With `caches`, casts of trained weights are kept as long as the mode, as autocast does.
    """

    def __init__(self, compute: torch.dtype, *, caches: bool = False) -> None:
        super().__init__()
        self._compute, self._caches = compute, caches
        self._weights: dict[int, Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = str(getattr(func, "__name__", "")).strip("_")
        kwargs = kwargs or {}
        if (name in LOWERED or name == ATTENTION) and torch.is_autocast_enabled("cpu"):
            args = tuple(self._lowered(value) for value in args)
            kwargs = {key: self._lowered(value) for key, value in kwargs.items()}
        return func(*args, **kwargs)

    def _lowered(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dtype == torch.float64:
            return value
        caches = self._caches and torch.is_autocast_cache_enabled()
        if caches and value.is_leaf and value.requires_grad and value.dtype == torch.float32:
            if id(value) not in self._weights:
                self._weights[id(value)] = value.to(self._compute)
            return self._weights[id(value)]
        return value.to(self._compute)
