"""Whether weights are those of a network: names and shapes compared, and all loaded or nothing."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from reelworks.core.errors import UserError, first_few

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of tensors by name."""


class Misfit(UserError):  # noqa: N818
    """Weights of another network than the one that they are for; `known.explained` says of which.

    Attributes:
        shapes: Of the tensors that were given, by name.
    """

    def __init__(self, own: Shapes, given: Shapes, field: str, source: str) -> None:
        self.shapes = given
        super().__init__(
            f"these weights do not fit the model: {_differences(own, given)}",
            field=field,
            value=source,
            remedy="choose the model, autoencoder and text encoder that the weights were trained with",
        )


def shapes_of(state: Mapping[str, Tensor]) -> Shapes:
    """Shapes of tensors by name."""
    return {name: tuple(value.shape) for name, value in state.items()}


def require_fit(own: Shapes, given: Shapes, source: str, field: str) -> None:
    """Refuse weights whose names and shapes are not those of a network.

    Raises:
        Misfit: Says how many are missing, unexpected or of another shape, and the first of each.
    """
    if own != given:
        raise Misfit(own, given, field, source)


def load_into(
    module: nn.Module, state: Mapping[str, Tensor], source: str, field: str = "model.weights"
) -> None:
    """Load a state into a module whose keys and shapes it has, in the dtypes of the module.

    Parameters on `meta` are replaced by the state's tensors, in the dtypes and places that those have.

    Raises:
        Misfit: If keys or shapes differ; nothing is loaded then.
    """
    own = module.state_dict()
    require_fit(shapes_of(own), shapes_of(state), source, field)
    if any(parameter.is_meta for parameter in module.parameters()):
        module.load_state_dict(state, strict=True, assign=True)
    else:
        module.load_state_dict({key: value.to(own[key].dtype) for key, value in state.items()}, strict=True)


def _differences(own: Shapes, given: Shapes) -> str:
    """Say how much differs, then name the first of each kind, in the model's order."""
    kinds = {
        "missing": [key for key in own if key not in given],
        "unexpected": [key for key in given if key not in own],
        "of another shape": [
            f"{key} {list(given[key])} instead of {list(shape)}"
            for key, shape in own.items()
            if given.get(key, shape) != shape
        ],
    }
    found = {kind: names for kind, names in kinds.items() if names}
    counts = ", ".join(f"{len(names):,} {kind}" for kind, names in found.items())
    lines = "".join(f"\n    {kind}: {first_few(names)}" for kind, names in found.items())
    return f"{counts} of {len(own):,} tensors{lines}"
