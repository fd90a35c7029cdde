"""Base class of adapter types. Torch-free: recipes are checked by it, and networks are adapted by it later."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from reelworks.models.family import FamilyConfig, Network
    from reelworks.models.lora.conventions import Convention
    from reelworks.models.lora.release_layers import Layers, TargetLayer

NAME = "default"  # of the adapter in peft's layers


class Adapter(NamedTuple):
    """The settings that fix what an adapter's tensors mean; hashable."""

    type: str = "lora"
    rank: int = 16
    alpha: float = 16.0
    decompose_factor: int | None = None
    decompose_both: bool = False
    block_size: int = 32


class AdapterSettings(Protocol):
    """The values of `[lora]` that a type reads; `config.LoraConfig` has them."""

    rank: int
    dropout: float
    decompose_factor: int | None
    decompose_both: bool
    block_size: int
    dora: bool

    @property
    def exact_alpha(self) -> float:
        """Alpha, with the rank as default."""


class AdapterType(ABC):
    """A kind of update, with all that depends on it; `registry.register` makes it a value of `lora.type`.

    The kinds of its tensors, such as "A", name them in this project.
    """

    name: ClassVar[str]  # in recipes
    settings: ClassVar[tuple[str, ...]]  # keys of [lora] that not all types read
    tensors: ClassVar[Mapping[str, str]]  # ends of names in peft's files, by kind
    required: ClassVar[frozenset[str]] = frozenset()  # kinds without which the tensors of a layer are nothing
    random: ClassVar[
        tuple[str, ...]
    ]  # kinds that begin with random values; others begin as zeros or as numbers of the base
    ranked: ClassVar[tuple[str, ...]] = ()  # kinds whose rows are as many as the rank, the first that is there
    # Kinds by which the whole update is multiplied, the first that is there; none if it is not added to the weights.
    multiplied: ClassVar[tuple[str, ...]] = ()
    stacked: ClassVar[str | None] = None  # kind with the rows of a layer that joins several; None if none can be joined
    forward: ClassVar[Callable[..., Any] | None] = None  # forward pass of a layer, in place of peft's
    # How far a new adapter may change predictions in bfloat16, and settings for tiny networks: for `testing.contract`.
    tolerance: ClassVar[float] = 0.0
    tiny: ClassVar[Mapping[str, Any]] = {"rank": 2}

    @abstractmethod
    def peft_config(self, peft: Any, config: AdapterSettings, target_modules: str) -> Any:
        """Return peft's settings of an adapter on the layers that a pattern matches."""

    def require_fit(self, layers: Mapping[str, nn.Linear], config: AdapterSettings) -> None:  # noqa: B027 (most refuse nothing)
        """Refuse settings that do not fit the layers to adapt."""

    def finish_layer(self, layer: Any, config: AdapterSettings) -> None:
        """Set up a layer of peft that has got this type's forward pass."""
        layer.dropout = config.dropout

    def require_writable(  # noqa: B027
        self, config: AdapterSettings, convention: Convention, field: str, network: Network | None
    ) -> None:
        """Refuse a file convention that cannot hold the adapter for a network; None for an unknown one."""

    def require_readable(self, settings: Mapping[str, Any]) -> None:  # noqa: B027
        """Refuse peft's settings in a file's header with which the same numbers are another update."""

    def endings(self) -> dict[str, str]:
        """Return the kinds of its tensors by the ends of their names in files of all conventions."""
        return {ending: kind for kind, ending in self.tensors.items()} | {"alpha": "alpha"}

    def rank_of(self, kinds: Mapping[str, Tensor]) -> int | None:
        """Return the rank of a layer's update; None if it has none, and so no scale."""
        return next((kinds[kind].shape[0] for kind in self.ranked if kind in kinds), None)

    @abstractmethod
    def split_layer(self, kinds: dict[str, Tensor], targets: list[TargetLayer], config: AdapterSettings) -> Layers:
        """Split one stored layer into the target layers; empty if that cannot be done."""

    @abstractmethod
    def peft_settings(self, adapter: Adapter, layers: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
        """Return peft's settings for the header of a file, whose scale is part of the numbers."""

    def header(self, adapter: Adapter) -> dict[str, str]:
        """Return what the header of a file says of a type other than LoRA, in kohya's terms."""
        return {}

    @abstractmethod
    def released_tensors(
        self, layers: Mapping[str, Mapping[str, Tensor]], convention: Convention, rank: int, family: FamilyConfig | None
    ) -> dict[str, Tensor]:
        """Return the tensors of a file whose layers are those of a family's release, or of diffusers without a family."""

    @abstractmethod
    def candidates(self, shapes: Mapping[str, torch.Size], config: AdapterSettings) -> Iterator[dict[str, Any]]:
        """Yield the settings that a file may have been trained with, by the shapes of its kinds, of some layer each."""

    def possible_ranks(self, shapes: Mapping[str, torch.Size]) -> list[int]:
        """Return the ranks that the shapes of a file's tensors may have: a layer of the release has one for each part."""
        ranks = [shapes[kind][0] for kind in self.ranked if kind in shapes]
        return [rank // parts for rank in ranks for parts in (4, 3, 2, 1) if rank % parts == 0]
