"""Declarations of every family about itself, and the component shapes it is told; torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

from reelworks.core.errors import UserError


@dataclass(frozen=True)
class Conditioning:
    """How a network wants its texts, and whether it is told of given frames.

    Attributes:
        empty_caption: "learned": the network has an empty caption of its own; "encoded": it is shown what the
            text encoder makes of no words.
        guidance: "classifier-free": a second pass without caption; "embedded": the network was distilled to
            take the scale as an input.
        frames: The network is told which frames are given, so that clips can be trained to go on from them.
        objectives: Names of objectives that published weights were trained with.
        takes: Companions of a clip that it is shown whole: "control", "source".
        needs: Those of them that it cannot do without.
        first_frame: How it is shown the first frame of a clip beside the noise: "grey": encoded together with grey
            frames behind it; "alone": encoded alone, with zeros behind it; None: not at all.
        image_encoder: What tells it of the first frame besides; None: nothing.
        image_dim: Width of what that says.
    """

    empty_caption: Literal["learned", "encoded"] = "encoded"
    guidance: Literal["classifier-free", "embedded"] = "classifier-free"
    frames: bool = False
    objectives: tuple[str, ...] = ("rectified-flow",)
    takes: tuple[Literal["control", "source"], ...] = ()
    needs: tuple[Literal["control", "source"], ...] = ()
    first_frame: Literal["grey", "alone"] | None = None
    image_encoder: Literal["clip", "siglip"] | None = None
    image_dim: int = 0


LEARNED = Conditioning(empty_caption="learned", frames=True, objectives=("rectified-flow", "iddpm"))


@dataclass(frozen=True)
class ComponentShapes:
    """Sizes that the autoencoder and the text encoder fix.

    Attributes:
        latent_channels: Of the autoencoder.
        text_dim: Width of a text's tokens.
        pooled_dim: Width of a text's summary, 0 where there is none.
    """

    latent_channels: int
    text_dim: int
    pooled_dim: int


@dataclass(frozen=True)
class Network:
    """Place of a network in diffusers.

    Attributes:
        name: Its class.
        blocks: The lists of its blocks, in order of use.
        part: Its folder beside the other parts of a pipeline.
        without_gradient: Beginnings of the names of parameters that no loss can reach.
        widened: A parameter whose columns for companions are zero where weights lack them, so that a network that was
            trained without can be trained on with them.
        shape_only: It runs on the meta device: no step of its forward pass depends on values.
    """

    name: str
    blocks: tuple[str, ...]
    part: str = "transformer"
    without_gradient: tuple[str, ...] = ()
    widened: str | None = None
    shape_only: bool = True


class FamilyConfig(Protocol):
    """Sizes of a network of diffusers: its arguments as fields, and what follows from them."""

    @property
    def patch_size(self) -> tuple[int, int, int]:
        """Latent elements per token along (time, height, width)."""
        ...

    @property
    def pictures_only(self) -> bool:
        """Clips are refused."""
        ...

    @property
    def conditioning(self) -> Conditioning:
        """How it takes texts and given frames."""
        ...

    @property
    def network(self) -> Network:
        """Place of the network in diffusers."""
        ...

    def model_dump(self) -> dict[str, Any]:
        """Return the arguments that the network is built with."""
        ...

    def fit(self, neighbours: ComponentShapes) -> Self:
        """Return the config with the widths that the neighbours fix.

        Raises:
            UserError: If the family needs what they do not have.
        """
        ...


def require_pooled(neighbours: ComponentShapes) -> int:
    """Return the width of a text's summary.

    Raises:
        UserError: If the text encoder makes none.
    """
    if neighbours.pooled_dim == 0:
        raise UserError(
            "this model takes a summary of the whole caption too, and this text encoder makes none",
            field="text.name",
            value=None,
            remedy="choose the text encoder that the model was trained with",
        )
    return neighbours.pooled_dim
