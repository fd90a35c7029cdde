"""How near numbers are to those of a reference."""

from torch import Tensor


def relative(got: Tensor, want: Tensor) -> float:
    """The largest difference as a share of the largest number."""
    return float((got - want).abs().max() / want.abs().max())
