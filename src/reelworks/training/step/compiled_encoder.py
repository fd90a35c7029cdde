"""The encoder of an autoencoder, compiled in place with static shapes.

A shape of the encoder's input has one graph. Autoencoders that go through a clip part by part, as Wan's, have up to five for
a clip: of its first part, and of the next ones, until what they leave to the next has a steady shape and layout. Decoding is
not compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from reelworks.core.log import logger
from reelworks.models.api import Autoencoder
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import compiled_blocks
from reelworks.training.step.compiled_blocks import FirstShapes

_GRAPHS_PER_SHAPE = 8  # of clips in parts; at most 4 of one shape were seen
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the dimensions of a convolution's weight


def of_recipe(autoencoder: Autoencoder, recipe: Recipe, device: torch.device) -> list[FirstShapes]:
    """Compile an autoencoder's encoder on its device if the recipe says so; return the shapes of each of its networks.

    On a GPU its weights are also stored with the channels last. Graphs keep that order from one convolution to the next;
    without graphs, norms would change it back.
    """
    train = recipe.train
    shapes = []
    for network in autoencoder.encoding_networks if train.compile else ():
        if device.type == "cuda":
            store_channels_last(network)
        shapes.append(compile_network(network, train.compile_graphs, train.compile_backend))
    return shapes


def store_channels_last(network: nn.Module) -> None:
    """Store the weights of convolutions with channels as the last axis, as cuDNN's kernels for tensor cores read them."""
    for weight in network.parameters():
        if weight.dim() in _CHANNELS_LAST:
            weight.data = weight.data.to(memory_format=_CHANNELS_LAST[weight.dim()])


def compile_network(network: nn.Module, most_shapes: int, backend: str | Callable[..., Any]) -> FirstShapes:
    """Compile a network for the first `most_shapes` shapes of its input; others run without, with one warning each."""
    limit = most_shapes * _GRAPHS_PER_SHAPE
    shapes, told = FirstShapes(most_shapes), set[tuple[int, ...]]()

    def runs(x: Tensor, *_: Any, **__: Any) -> bool:
        shape = tuple(x.shape)
        is_taken = shapes.take(shape)
        if shape not in told and is_taken:
            number = [*shapes.chosen].index(shape) + 1
            logger.info(f"compiling the autoencoder for {_text(shape)}: shape {number} of at most {most_shapes}")
        elif shape not in told:
            logger.warning(
                f"the autoencoder runs without compilation for {_text(shape)}, since train.compile_graphs = "
                f"{most_shapes} leaves no graph for it"
            )
        told.add(shape)
        return is_taken

    compiled_blocks.compile_in_place(network, backend, runs, (limit, limit), "the autoencoder")
    return shapes


def _text(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))
