"""How far products of an int8 base are from exact ones, and how long they take: `python -m benchmarks.int8_products`.

Each row is a layer with weights of a normal distribution. Inputs are normal, or one in a hundred is 50 times as large, as in
transformers. Errors are relative to the product in float32: in bfloat16, with the int8 weight widened to bfloat16 (`lora.base
= "int8"`), and in 8 bits without and with rotation (`lora.int8_products`, which rotates). On a GPU the last column is how many
times as fast a rotated product is as that of the widened weight, both compiled.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from reelworks.models.adapters import frozen
from reelworks.models.adapters.frozen import Quantized
from reelworks.models.storage import scaled_weights

_LAYERS = {
    "tiny": (64, 64),
    "STDiT3 attention": (1152, 1152),
    "Wan 1.3B attention": (1536, 1536),
    "Wan 1.3B feed-forward": (1536, 8960),
    "FLUX feed-forward": (3072, 12288),
}
_PASSES = 20


def main() -> None:
    """Print a row for each layer and kind of inputs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16384 if torch.cuda.is_available() else 256, help="tokens")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(
        f"{args.rows} tokens, {torch.cuda.get_device_name() if device.type == 'cuda' else 'CPU'}, torch {torch.__version__}"
    )
    print(f"{'layer':22} {'inputs':9} {'bfloat16':>8} {'widened':>8} {'8 bits':>8} {'rotated':>8} {'faster':>7}")
    for name, (width, out) in _LAYERS.items():
        for outliers in (False, True):
            errors, faster = _measure(args.rows, width, out, device, outliers=outliers)
            told = " ".join(f"{100 * error:7.2f}%" for error in errors)
            print(f"{name:22} {'outliers' if outliers else 'normal':9} {told} {faster:>7}", flush=True)


def _measure(rows: int, width: int, out: int, device: torch.device, *, outliers: bool) -> tuple[list[float], str]:
    torch.manual_seed(0)
    x, weight = torch.randn(rows, width, device=device), torch.randn(out, width, device=device) / width**0.5
    if outliers:
        x[:, torch.randperm(width)[: max(width // 100, 1)]] *= 50
    exact, low = functional.linear(x.double(), weight.double()), x.bfloat16()
    plain = frozen.quantize(weight, "int8")
    rotated = frozen.quantize(weight, "int8", scaled_weights.rotation(frozen.rotation_group(width), device))
    found = [
        functional.linear(low, weight.bfloat16()),
        _widened(low, plain),
        frozen.int8_product(low, plain, None),
        frozen.int8_product(low, rotated, None),
    ]
    errors = [float((each - exact).norm() / exact.norm()) for each in found]
    if device.type != "cuda":
        return errors, ""
    seconds = [_seconds(_widened, low, plain), _seconds(_in_eight_bits, low, rotated)]
    return errors, f"{seconds[0] / seconds[1]:.2f}"


def _widened(x: Tensor, weight: Quantized) -> Tensor:
    out, width = weight.codes.shape
    return functional.linear(x, frozen.dequantize(weight, "int8", (out, width), x.dtype))


def _in_eight_bits(x: Tensor, weight: Quantized) -> Tensor:
    return frozen.int8_product(x, weight, None)


def _seconds(product: Callable[[Tensor, Quantized], Tensor], x: Tensor, weight: Quantized) -> float:
    """Return the seconds of a compiled product on a GPU."""
    torch._dynamo.reset()
    compiled: Any = torch.compile(product, dynamic=False)
    for passes in (3, _PASSES):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(passes):
            compiled(x, weight)
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / _PASSES


if __name__ == "__main__":
    main()
