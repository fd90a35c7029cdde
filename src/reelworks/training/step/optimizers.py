"""Optimizers of torch and other libraries, with state that is allocated before the first step and named by weight."""

from __future__ import annotations

import contextlib
import importlib
import io
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.overrides import TorchFunctionMode

from reelworks.core.errors import UserError
from reelworks.data.distributed.mesh import local, local_parts
from reelworks.models.adapters import text_encoders
from reelworks.models.expert_pair.denoiser import ExpertPair
from reelworks.training.loop.config import TrainConfig
from reelworks.training.step import optimizer_names

# Values that Prodigy and schedule-free AdamW compute over all weights; they store them in their parameter groups.
_FOUND = ("d", "d_max", "d_numerator", "k", "weight_sum", "lr_max")
_RATIO = "rate_ratio"  # key of a group whose rate is a multiple of the usual one
_CAME_INSTABILITY_BETA = 0.9999  # the default of its authors


class _Part(NamedTuple):
    """An optimizer, a function that makes the initial state of its i-th weight, and the expert whose weights it has.

    torch itself would fill an empty state by a step without gradients, which counts as a step.
    """

    optimizer: torch.optim.Optimizer
    begin: Callable[[int, Tensor], dict[str, Any]]
    expert: str = ""


class ShardedOptimizer:
    """Update weights, sharded or not, with a library's optimizer; all memory is allocated at once.

    Muon trains only the weights named in `matrices`, those of linear layers within blocks. Names of weights begin with one
    of `experts`, of which a step trains one: what an optimizer keeps over all weights, each expert has for itself.
    """

    def __init__(
        self,
        config: TrainConfig,
        trained: Mapping[str, nn.Parameter],
        matrices: Collection[str],
        experts: Sequence[str] = ("",),
    ) -> None:
        optimizer_names.require_installed(config.optimizer)
        self.trained = dict(trained)
        # AdamW works on copies as they are; other libraries get plain tensors where they can.
        plain = config.optimizer != "adamw"
        weights = {name: _whole(p) if plain and is_whole(p) else p for name, p in self.trained.items()}
        if config.optimizer == "adamw8bit":
            weights |= {name: _Rows(p) for name, p in weights.items() if _shares_blocks(p)}
        assert not optimizer_names.OPTIMIZERS[config.optimizer].whole or all(map(is_whole, self.trained.values()))
        self._names = {id(weight): name for name, weight in weights.items()}
        self._views = [(weight, p) for name, weight in weights.items() if weight is not (p := self.trained[name])]
        self._hold_gradients = [*self.trained.values(), *(weight for weight, _ in self._views)]
        self._parts: list[_Part] = []
        for expert in experts:
            own = [name for name in weights if name.startswith(expert)]
            if own:  # a LoRA may have layers in one of them alone
                inner = [weights[name] for name in own if name in matrices]
                others = [weights[name] for name in own if name not in matrices]
                parts = _PARTS[config.optimizer](config, inner, others)
                self._parts += [part._replace(expert=expert) for part in parts]
        if config.text_encoder_learning_rate is not None:
            self._split_text_encoders(config.text_encoder_learning_rate / config.learning_rate)
        self.begin()

    def _split_text_encoders(self, ratio: float) -> None:
        """Give the weights of text encoders groups of their own, with so many times the rate."""
        for part in self._parts:
            for group in list(part.optimizer.param_groups):
                texts = {id(w): w for w in group["params"] if text_encoders.part_of(self._names[id(w)]) is not None}
                group["params"] = [w for w in group["params"] if id(w) not in texts]
                part.optimizer.param_groups.append({**group, "params": [*texts.values()], _RATIO: ratio})

    def begin(self) -> None:
        """Reset the state for the weights as they are now, as before the first step."""
        self._update_views()
        for part, group in self._groups():
            group.update({key: part.optimizer.defaults[key] for key in _FOUND if key in group})
            for i, weight in enumerate(group["params"]):
                part.optimizer.state[weight] = {}
                part.optimizer.state[weight] = part.begin(i, weight)

    def zero_grad(self) -> None:
        """Release the gradients."""
        for holder in self._hold_gradients:
            holder.grad = None

    def set_rate(self, rate: float) -> float:
        """Set the learning rate of the next step, and the multiple of it that text encoders have.

        Returns the rate that acts: multiplied by the factor that Prodigy finds, and with Adafactor at most 1 / √step; of
        several experts, that of the one whose weights have a gradient.
        """
        for _, group in self._groups():
            group["lr"] = rate * group.get(_RATIO, 1.0)
        self._update_views()
        first = next(filter(_has_gradient, self._parts), self._parts[0]).optimizer
        if isinstance(first, torch.optim.Adafactor):
            return min(rate, 1 / math.sqrt(1 + max(float(state["step"]) for state in first.state.values())))
        return rate * float(first.param_groups[0].get("d", 1.0))

    def step(self, scale: Tensor | None = None) -> None:
        """Update the weights that have a gradient, in place; gradients are multiplied by `scale`, one number, before.

        They hold nothing of use afterwards.
        """
        self._update_views()
        for part in filter(_has_gradient, self._parts):
            optimizer: Any = part.optimizer
            if getattr(optimizer, "_step_supports_amp_scaling", False):
                # Fused AdamW divides gradients while it reads them, as gradient scalers ask; that spares a pass.
                optimizer.grad_scale = None if scale is None else scale.reciprocal()
            elif scale is not None:
                weights = (weight for group in optimizer.param_groups for weight in group["params"])
                if gradients := [weight.grad for weight in weights if weight.grad is not None]:
                    torch._foreach_mul_(local_parts(gradients), scale)
            optimizer.step()

    @torch.no_grad()
    def own_averages(self) -> dict[str, Tensor]:
        """Return the average of the weights, by name, that the optimizer has by itself: schedule-free AdamW's.

        It trains on the points y = β1 x + (1 - β1) z between this average x and a fast sequence z, and holds x only by them.
        """
        self._update_views()
        averages = {}
        for weight, state, group in self._weights():
            if "z" in state:
                average = local(weight.detach()).clone()
                averages[self._names[id(weight)]] = average.lerp_(local(state["z"]), 1 - 1 / group["betas"][0])
        return averages

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each weight by name, and the values over all weights of an expert; settings are in the recipe.

        Of schedule-free AdamW also β1, by which its weights lie between the average and z.
        """
        states = {self._names[id(weight)]: self._saved(weight, state) for weight, state, _ in self._weights()}
        found: dict[str, Any] = {}
        for part, group in self._groups():
            found |= {f"{part.expert}{key}": group[key] for key in _FOUND if key in group}
            if "weight_sum" in group:
                found[f"{part.expert}beta1"] = group["betas"][0]
        return {"state": states, **({"found": found} if found else {})}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy the plain numbers of a state that was loaded into `state_dict()`; its tensors are loaded in place.

        Weights are loaded before: if β1 is another one now, those of schedule-free AdamW move, and their average stays.
        """
        self._update_views()
        found = state.get("found", {})
        for part, group in self._groups():
            if missing := [key for key in _FOUND if key in group and f"{part.expert}{key}" not in found]:
                raise UserError(
                    f"it was saved by an optimizer of another form, without {part.expert}{missing[0]}",
                    code="optimizer-state-differs",
                    field="train.optimizer",
                    remedy="begin another run from its weights, with --load RUN --weights-only",
                )
            named = {f"{part.expert}{key}": key for key in (*_FOUND, "beta1")}
            group.update({named[name]: value for name, value in found.items() if name in named})
        for weight, held, group in self._weights():
            values = state["state"][self._names[id(weight)]]
            if isinstance(weight, _Rows):
                values = {key: local(value) for key, value in values.items()}
            held.update(values)
            if "z" in held and (ratio := group["betas"][0] / group.get("beta1", group["betas"][0])) != 1:
                local(weight.detach()).lerp_(local(held["z"]), 1 - ratio)

    def tensors(self) -> dict[tuple[str, str], Tensor]:
        """Return the tensors of the state, by name of the weight and of the value, each tensor once."""
        once: dict[int, tuple[tuple[str, str], Tensor]] = {}
        for name, values in self.state_dict()["state"].items():
            for key, value in values.items():
                if key != "step":  # a count, which does not grow with the weights
                    once.setdefault(id(value), ((name, key), value))
        return dict(once.values())

    def not_finite(self) -> list[str]:
        """Return the names of Prodigy's values that are not finite."""
        found = self.state_dict().get("found", {})
        return [f"the optimizer's {key}" for key, value in found.items() if not math.isfinite(value)]

    def _saved(self, weight: nn.Parameter, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of a weight as it is saved: that of a rank's rows as its part of the whole state."""
        values = dict(state)
        if isinstance(weight, _Rows):
            whole = self.trained[self._names[id(weight)]]
            assert isinstance(whole, DTensor)
            for key in ("state1", "state2", "absmax1", "absmax2"):
                values[key] = DTensor.from_local(values[key], whole.device_mesh, whole.placements, run_check=False)
        return values

    def _update_views(self) -> None:
        """Point optimizers that need whole weights to the memory where FSDP keeps them now."""
        for weight, parameter in self._views:
            weight.data = local(parameter.detach())
            weight.grad = None if parameter.grad is None else local(parameter.grad)

    def _weights(self) -> Iterator[tuple[nn.Parameter, dict[str, Any], dict[str, Any]]]:
        """Yield each weight, its state and its group."""
        for part, group in self._groups():
            yield from ((weight, part.optimizer.state[weight], group) for weight in group["params"])

    def _groups(self) -> Iterator[tuple[_Part, dict[str, Any]]]:
        return ((part, group) for part in self._parts for group in part.optimizer.param_groups)


def _has_gradient(part: _Part) -> bool:
    return any(weight.grad is not None for group in part.optimizer.param_groups for weight in group["params"])


def experts(module: nn.Module) -> list[str]:
    """Return how names of weights begin in each network of which a step trains one."""
    return [f"{name}." for name, _ in module.named_children()] if isinstance(module, ExpertPair) else [""]


def matrices(module: nn.Module, blocks: Sequence[nn.Module]) -> set[str]:
    """Return the names of the weights of linear layers within blocks."""
    weights = {
        id(parameter)
        for block in blocks
        for layer in block.modules()
        if isinstance(layer, nn.Linear)  # a frozen one may have no such parameter
        for name, parameter in layer.named_parameters(recurse=False)
        if name == "weight" and parameter.ndim == 2
    }
    return {name for name, parameter in module.named_parameters() if id(parameter) in weights}


def is_whole(parameter: Tensor) -> bool:
    """Return whether each rank holds all of a parameter."""
    return _shards(parameter) == 1


def _shards(parameter: Tensor) -> int:
    """Return the number of shards of a parameter."""
    if not isinstance(parameter, DTensor):
        return 1
    mesh = parameter.device_mesh
    return math.prod(mesh.size(i) for i, placement in enumerate(parameter.placements) if placement.is_shard())


def _whole(parameter: nn.Parameter) -> nn.Parameter:
    """Return a plain parameter that shares the memory of one that FSDP replicates."""
    return nn.Parameter(local(parameter.detach())) if isinstance(parameter, DTensor) else parameter


class _Rows(nn.Parameter):
    """This rank's rows of a weight in shards, as a plain tensor that shares their memory."""

    def __new__(cls, weight: Tensor) -> _Rows:
        return super().__new__(cls, local(weight.detach()))


# AdamW in 8 bits has a scale for each block of so many numbers.
_BLOCK = 256
# Smaller ones keep 32 bits, and so do those with few rows, which could not be shared by many ranks in whole blocks.
_FEWEST_NUMBERS, _FEWEST_ROWS = 4096, 64


def _has_8_bits(weight: Tensor) -> bool:
    """Return whether the state of a weight is kept in 8 bits, whatever the layout."""
    return weight.ndim >= 2 and weight.numel() >= _FEWEST_NUMBERS and weight.shape[0] >= _FEWEST_ROWS


def _shares_blocks(weight: Tensor) -> bool:
    """Return whether a weight in shards has a state in 8 bits: if each rank has equally many rows, of whole blocks.

    The blocks are then those of the whole weight, so that a checkpoint can be continued in another layout.
    """
    shards = _shards(weight)
    if shards == 1 or not _has_8_bits(weight):
        return False
    return weight.shape[0] % shards == 0 and weight.numel() // shards % _BLOCK == 0


def _adamw(config: TrainConfig, inner: list[nn.Parameter], others: list[nn.Parameter]) -> list[_Part]:
    weights = [*inner, *others]
    fused = bool(weights) and all(weight.device.type in ("cpu", "cuda") for weight in weights)

    def begin(_: int, p: Tensor) -> dict[str, Any]:
        zeros = {key: torch.zeros_like(p) for key in ("exp_avg", "exp_avg_sq")}
        return {"step": torch.zeros((), device=p.device if fused else None), **zeros}

    return [_Part(torch.optim.AdamW(weights, **_settings(config), fused=fused or None), begin)] if weights else []


def _adamw8bit(config: TrainConfig, inner: list[nn.Parameter], others: list[nn.Parameter]) -> list[_Part]:
    library: Any = importlib.import_module("bitsandbytes.optim")
    weights = [*inner, *others]
    lowered = {id(p): p for p in weights if isinstance(p, _Rows) or (is_whole(p) and _has_8_bits(p))}
    rest = _adamw(config, [], [p for p in weights if id(p) not in lowered])
    if not lowered:
        return rest
    optimizer = library.AdamW8bit(lowered.values(), **_settings(config), min_8bit_size=_BLOCK)

    def begin(i: int, p: Tensor) -> dict[str, Any]:
        optimizer.init_state(optimizer.param_groups[0], p, 0, i)
        return dict(optimizer.state[p])

    return [_Part(optimizer, begin), *rest]


def _muon(config: TrainConfig, inner: list[nn.Parameter], others: list[nn.Parameter]) -> list[_Part]:
    if not inner:
        raise UserError(
            "no trained weight is a matrix of a linear layer within blocks, so AdamW would update all weights",
            code="no-matrix-to-train",
            field="train.optimizer",
            value="muon",
            remedy='set it to "adamw"',
        )
    kind = MuonOfDevice if all(map(is_whole, inner)) else GatheredMuon
    optimizer = kind(
        inner,
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        adjust_lr_fn="match_rms_adamw",  # so that one learning rate serves for both parts
    )
    part = _Part(optimizer, lambda _, p: {"momentum_buffer": torch.zeros_like(p)})
    return [part, *_adamw(config, [], others)]


class _InFloat32(TorchFunctionMode):
    """Compute in float32 what torch asks for in bfloat16."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.bfloat16:
            return args[0].to(torch.float32, copy=True)
        return function(*args, **(kwargs or {}))


class MuonOfDevice(torch.optim.Muon):
    """Muon of torch, in float32 on a CPU.

    torch makes updates orthogonal in bfloat16, for which most CPUs have no instructions: there a matrix of 1024 × 256 takes
    half a second.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the matrices that have a gradient, in place."""
        on_cpu = self.param_groups[0]["params"][0].device.type == "cpu"
        with _InFloat32() if on_cpu else contextlib.nullcontext():
            super().step()  # type: ignore[no-untyped-call]


class GatheredMuon(torch.optim.Muon):
    """Muon for matrices in shards: gathers the update of each, one after the other, and keeps this rank's rows.

    Every rank orthogonalises all matrices. Momentum is in shards.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the matrices that have a gradient, in place. Collective."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                momentum, gradient = self.state[weight]["momentum_buffer"], weight.grad
                momentum.lerp_(gradient, 1 - group["momentum"])
                towards = gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
                change = self._orthogonal(towards.full_tensor(), group)
                whole = [Replicate()] * weight.device_mesh.ndim
                rows = DTensor.from_local(change, weight.device_mesh, whole).redistribute(placements=weight.placements)
                weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(rows)

    def _orthogonal(self, towards: Tensor, group: dict[str, Any]) -> Tensor:
        """Return the change of a whole matrix by a step of torch's Muon, without momentum, from zeros."""
        change = nn.Parameter(torch.zeros_like(towards))
        change.grad = towards
        kept = {key: group[key] for key in ("lr", "eps", "ns_coefficients", "ns_steps", "adjust_lr_fn")}
        once: torch.optim.Optimizer = MuonOfDevice([change], momentum=0.0, weight_decay=0.0, **kept)
        once.step()
        return change.detach()


def _schedulefree(config: TrainConfig, inner: list[nn.Parameter], others: list[nn.Parameter]) -> list[_Part]:
    library: Any = importlib.import_module("schedulefree")

    def begin(_: int, p: Tensor) -> dict[str, Any]:
        return {"z": p.detach().clone(), "exp_avg_sq": torch.zeros_like(p)}

    # Its collective calls on lists are not made for shards.
    optimizer = library.AdamWScheduleFree([*inner, *others], **_settings(config), foreach=False)
    optimizer.train()  # and so for good: the average is computed by `own_averages`
    return [_Part(optimizer, begin)]


def _prodigy(config: TrainConfig, inner: list[nn.Parameter], others: list[nn.Parameter]) -> list[_Part]:
    library: Any = importlib.import_module("prodigyopt")

    def begin(_: int, p: Tensor) -> dict[str, Any]:
        # By itself, Prodigy stores the initial value of a weight of zeros as one number, so that the shape of its state
        # would depend on values.
        at_start = p.detach().flatten().clone()
        zeros = {key: torch.zeros_like(p) for key in ("exp_avg", "exp_avg_sq")}
        return {"step": 0, "s": torch.zeros_like(at_start), "p0": at_start, **zeros}

    # As its authors recommend for diffusion models, and for warm-up.
    recommended = {"use_bias_correction": True, "safeguard_warmup": True}
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its kind of weight decay
        optimizer = library.Prodigy([*inner, *others], **_settings(config), **recommended)
    return [_Part(optimizer, begin)]


def _adafactor(config: TrainConfig, inner: list[nn.Parameter], others: list[nn.Parameter]) -> list[_Part]:
    def begin(_: int, p: Tensor) -> dict[str, Any]:
        step = {"step": torch.tensor(0.0)}
        if p.dim() < 2:
            return {**step, "variance": torch.zeros_like(p)}
        return {**step, "row_var": torch.zeros_like(p[..., :1]), "col_var": torch.zeros_like(p[..., :1, :])}

    weights = [*inner, *others]
    optimizer = torch.optim.Adafactor(weights, lr=config.learning_rate, weight_decay=config.weight_decay)
    return [_Part(optimizer, begin)]


def _came(config: TrainConfig, inner: list[nn.Parameter], others: list[nn.Parameter]) -> list[_Part]:
    library: Any = importlib.import_module("came_pytorch")
    assert config.betas is not None

    def begin(_: int, p: Tensor) -> dict[str, Any]:
        state = {"step": 0, "RMS": torch.zeros((), device=p.device), "exp_avg": torch.zeros_like(p)}
        if p.dim() < 2:
            return {**state, "exp_avg_sq": torch.zeros_like(p)}
        rows = {f"exp_avg_{kind}_row": torch.zeros_like(p[..., 0]) for kind in ("sq", "res")}
        columns = {f"exp_avg_{kind}_col": torch.zeros_like(p[..., 0, :]) for kind in ("sq", "res")}
        return {**state, **rows, **columns}

    betas = (*config.betas, _CAME_INSTABILITY_BETA)
    settings = {"lr": config.learning_rate, "betas": betas, "weight_decay": config.weight_decay}
    return [_Part(library.CAME([*inner, *others], **settings), begin)]


def _settings(config: TrainConfig) -> dict[str, Any]:
    assert config.betas is not None
    return {
        "lr": config.learning_rate,
        "betas": (config.betas[0], config.betas[1]),
        "eps": config.eps,
        "weight_decay": config.weight_decay,
    }


_PARTS = {
    "adamw": _adamw,
    "adamw8bit": _adamw8bit,
    "muon": _muon,
    "prodigy": _prodigy,
    "adafactor": _adafactor,
    "came": _came,
    "schedulefree": _schedulefree,
}
