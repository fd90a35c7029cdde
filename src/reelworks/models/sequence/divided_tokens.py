"""Divide any number of tokens of a diffusers network over ranks, by hooks around its modules and attentions of our own.

diffusers' own plan and attention need a number of tokens that the ranks divide, and compute attention once more in the
backward pass. A family names the places in its network, and computes its attention, in a `divided_tokens.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from reelworks.data.distributed.sequence import SequenceGroup, Shares


@dataclass(frozen=True)
class Places:
    """Paths of the modules of a network where tokens are divided and gathered."""

    attentions: Callable[[str], bool]  # whether a path is that of an attention among divided tokens
    first: str  # block whose `hidden_states` `[B, tokens, D]` are divided
    angles: str  # module whose outputs, the angles of positions, are divided
    angles_dim: int  # dimension of tokens in these
    # Attention among divided tokens in place of the network's own: `processor(divided, backend)`.
    processor: Callable[[DividedTokens, Any], Any]
    last: str = "proj_out"  # module whose output is gathered, so that each rank has all tokens
    times: str = "timestep"  # input of the network that is divided if it is `[B, tokens]`


class DividedTokens:
    """The hooks of one network, and the number of tokens of the clips that it computes.

    Attributes:
        shares: Shares of the last forward pass, which its backward pass needs to compute blocks again.
    """

    def __init__(self, network: Any, places: Places, group: SequenceGroup) -> None:
        self._network, self._places, self._group = network, places, group
        self._handles: list[Any] = []
        # Before the network is sharded, which changes its class.
        self._inputs = list(inspect.signature(type(network).forward).parameters)[1:]
        self.shares: Shares | None = None

    def start(self) -> None:
        """Divide tokens from now on."""
        find, places = self._network.get_submodule, self._places
        first: nn.Module = find(places.first)
        self._handles = [
            self._network.register_forward_pre_hook(self._divide_times, with_kwargs=True),
            find(places.angles).register_forward_hook(self._divide_angles),
            first.register_forward_pre_hook(self._divide_tokens, with_kwargs=True),
            find(places.last).register_forward_hook(self._gather),
        ]

    def stop(self) -> None:
        """Leave tokens whole from now on."""
        for handle in self._handles:
            handle.remove()

    def _divide_times(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        times = self._places.times
        at = self._inputs.index(times)
        value = kwargs[times] if times in kwargs else args[at]
        if value.ndim != 2:
            return None
        return _replaced(args, kwargs, at, times, self._group.shares(value.shape[1]).split(value, 1))

    def _divide_angles(self, _module: nn.Module, _args: tuple[Any, ...], angles: tuple[Tensor, ...]) -> Any:
        dim = self._places.angles_dim
        return tuple(self._group.shares(angle.shape[dim]).split(angle, dim) for angle in angles)

    def _divide_tokens(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tokens: Tensor = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        self.shares = self._group.shares(tokens.shape[1])
        return _replaced(args, kwargs, 0, "hidden_states", self.shares.split(tokens, 1))

    def _gather(self, _module: nn.Module, _args: tuple[Any, ...], out: Tensor) -> Tensor:
        assert self.shares is not None
        return self.shares.gather(out, 1)


def _replaced(
    args: tuple[Any, ...], kwargs: dict[str, Any], at: int, name: str, value: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (args, {**kwargs, name: value}) if name in kwargs else ((*args[:at], value, *args[at + 1 :]), kwargs)
