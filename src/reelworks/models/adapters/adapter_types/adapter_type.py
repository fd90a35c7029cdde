"""Base class of adapter types. Torch-free: recipes are checked by it, and networks are adapted by it later."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from reelworks.core.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from reelworks.models.adapters.conventions import Convention
    from reelworks.models.adapters.low_rank import LowRank, Spectrum
    from reelworks.models.adapters.release_layers import Layers, TargetLayer
    from reelworks.models.family import FamilyConfig, Network

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
    text_encoders: bool

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
    # Kinds that begin with random values; others begin as zeros or as numbers of the base.
    random: ClassVar[tuple[str, ...]]
    ranked: ClassVar[tuple[str, ...]] = ()  # kinds whose rows are as many as the rank, the first that is there
    # Kinds by which the whole update is multiplied, the first that is there; none if it is not added to the weights.
    multiplied: ClassVar[tuple[str, ...]] = ()
    # Whether readers of files that are not peft's look for an alpha in all conventions.
    needs_alpha: ClassVar[bool] = False
    stacked: ClassVar[str | None] = None  # kind with the rows of a layer that joins several; None if none can be joined
    forward: ClassVar[Callable[..., Any] | None] = None  # forward pass of a layer, in place of peft's
    # Settings of peft with the values that are read, its default first; with others, the same numbers are another update.
    readable: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    dependence: ClassVar[str] = ""  # why an update depends on the weight, if it does
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

    def call_in_diffusers(self, config: AdapterSettings, file: str, network: str, part: str) -> str | None:
        """Return how a pipeline `pipe` loads a file, with names that begin with `part`, into a network; None if it cannot."""
        return None

    def require_readable(self, settings: Mapping[str, Any]) -> None:
        """Refuse peft's settings in a file's header with which the same numbers are another update."""
        for name, values in self.readable.items():
            if settings.get(name, values[0]) not in values:
                raise UserError(
                    f"its header has {name} = {settings[name]}, which is not supported",
                    code="lora-unreadable",
                    remedy="name another file",
                )

    def endings(self) -> dict[str, str]:
        """Return the kinds of its tensors by the ends of their names in files of all conventions."""
        return {ending: kind for kind, ending in self.tensors.items()} | {"alpha": "alpha"}

    def rank_of(self, kinds: Mapping[str, Tensor]) -> int | None:
        """Return the rank of a layer's update; None if it has none, and so no scale."""
        return next((kinds[kind].shape[0] for kind in self.ranked if kind in kinds), None)

    @abstractmethod
    def split_layer(self, kinds: dict[str, Tensor], targets: list[TargetLayer], rank: int) -> Layers:
        """Split one stored layer into the target layers, of this rank if it can be; empty if that cannot be done."""

    @abstractmethod
    def peft_settings(self, adapter: Adapter, layers: Mapping[str, Collection[str]]) -> dict[str, Any]:
        """Return peft's settings for the header of a file, whose scale is part of the numbers."""

    def header(self, adapter: Adapter) -> dict[str, str]:
        """Return what the header of a file says of a type other than LoRA, in kohya's terms."""
        return {}

    @abstractmethod
    def released_tensors(
        self, layers: Mapping[str, Mapping[str, Tensor]], convention: Convention, rank: int, family: FamilyConfig | None
    ) -> dict[str, Tensor]:
        """Return the tensors of a file whose layers are those of a family's release, or of diffusers without a family."""

    def endings_in(self, convention: Convention, stem: str) -> Mapping[str, str]:
        """Return the ends of the names of a layer's tensors in files of a convention, by kind; `stem` is what they begin with."""
        return self.tensors

    def named(
        self, stem: str, kinds: Mapping[str, Tensor], convention: Convention, rank: int | None = None
    ) -> dict[str, Tensor]:
        """Return the tensors of a layer as files of a convention name them; `rank` is the alpha of one without a rank."""
        import torch

        endings = self.endings_in(convention, stem)
        tensors = {f"{stem}.{endings[kind]}": value for kind, value in kinds.items()}
        if convention.needs_alpha or (self.needs_alpha and not convention.is_peft):
            tensors[f"{stem}.alpha"] = torch.tensor(float(self.rank_of(kinds) or rank or 1))
        return tensors

    @abstractmethod
    def candidates(self, shapes: Mapping[str, torch.Size], config: AdapterSettings) -> Iterator[dict[str, Any]]:
        """Yield the settings that a file may have been trained with, by the shapes of its kinds, of some layer each."""

    def possible_ranks(self, shapes: Mapping[str, torch.Size]) -> list[int]:
        """Return the ranks that the shapes of a file's tensors may have: a layer of the release has one for each part."""
        ranks = [shapes[kind][0] for kind in self.ranked if kind in shapes]
        return [rank // parts for rank in ranks for parts in (4, 3, 2, 1) if rank % parts == 0]

    # Algebra of updates: of one layer each, whose tensors are by kind, of two axes, in float32 or wider and without a scale.

    def flat(self, kinds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return stored tensors with two axes each; those of a convolution have its kernel behind them."""
        return {kind: value.flatten(1) if value.ndim > 2 else value for kind, value in kinds.items()}

    def with_kernel(self, kinds: Mapping[str, Tensor], kernel: Sequence[int]) -> dict[str, Tensor]:
        """Return the tensors of a convolution as files have them, which is what `flat` undoes, given its kernel's sides."""
        return dict(kinds)

    def is_whole(self, kinds: Collection[str]) -> bool:
        """Whether a layer has all tensors that its update consists of."""
        return self.required <= set(kinds)

    def shape(self, kinds: Mapping[str, Tensor]) -> torch.Size:
        """Return the shape of the update, `[out, in]`; raises RuntimeError for tensors that do not belong together."""
        return self.delta(kinds).shape

    @abstractmethod
    def delta(self, kinds: Mapping[str, Tensor], rows: slice = slice(None)) -> Tensor:
        """Return what is added to a weight, `[out, in]`, or some of its rows; refuses what depends on the weight."""

    @abstractmethod
    def factors(self, kinds: Mapping[str, Tensor]) -> LowRank:
        """Return the update as the product of two matrices, exactly, whatever rank that takes; refuses as `delta` does."""

    def spectrum(self, kinds: Mapping[str, Tensor]) -> Spectrum:
        """Return the singular values of the update; refuses as `delta` does."""
        from reelworks.models.adapters import low_rank

        return low_rank.spectrum(self.factors(kinds))

    def norm(self, kinds: Mapping[str, Tensor]) -> float | None:
        """Return the Frobenius norm of the update; None if it depends on the weight."""
        return float(self.delta(kinds).norm())

    def distance(self, kinds: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float | None:
        """Return the Frobenius norm of the difference of two updates; None if it depends on the weight."""
        return float((self.delta(kinds) - self.delta(other)).norm())

    def applied(self, weight: Tensor, kinds: Mapping[str, Tensor], strength: float, rows: slice) -> Tensor:
        """Return rows of a weight, `[out, in]`, with the same rows of an update of the same dtype."""
        return weight + strength * self.delta(kinds, rows)

    def depends_on_weight(self, kinds: Collection[str]) -> bool:
        """Whether what an update adds to a weight depends on the weight, so that it has neither sum nor rank."""
        return False

    def no_answer(self) -> UserError:
        """Return the error for a question about an update that it has no answer to without the weight."""
        return UserError(
            self.dependence,
            code="adapter-without-answer",
            remedy="apply it to its base with `reelworks lora apply`; `reelworks lora extract` makes a LoRA of the result",
        )

    def no_parts(self, stem: str) -> UserError:
        """Return the error about a layer that is several in diffusers, and whose update is not one of each."""
        return UserError(
            f"{stem} is several layers in diffusers, and its {self.name} is none of each",
            code="adapter-not-writable",
            remedy="`reelworks lora resize` makes a LoRA of it, which can be converted",
        )


class LycorisType(AdapterType, ABC):
    """Base of LoKr, LoHa and OFT: their files are peft's for diffusers, or have LyCORIS's names.

    peft's layers of these types draw a random number in each pass, which breaks compiled graphs, and build the whole update of
    a LoKr; the forward passes here keep peft's parameters.
    """

    needs_alpha = True

    def peft_settings(self, adapter: Adapter, layers: Mapping[str, Collection[str]]) -> dict[str, Any]:
        """Return peft's settings for the header of a file."""
        names = {"peft_type": self.name.upper(), "target_modules": sorted(layers)}
        return names | {"r": adapter.rank, "alpha": adapter.rank}

    def header(self, adapter: Adapter) -> dict[str, str]:
        """Return what the header of a file says of the type, in kohya's terms."""
        arguments = {"algo": self.name, "factor": adapter.decompose_factor or -1}
        return {"ss_network_module": "lycoris.kohya", "ss_network_args": json.dumps(arguments)}
