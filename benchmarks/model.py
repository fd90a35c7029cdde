"""How fast a training step is: tokens per second, and the share of what the device's matrix units can do.

Steps are the trainer's own, from noised latents to updated weights and their average; data and encoders are
left out. The device's rate is that of large bfloat16 products measured in the same run, and a step's work is
three forward passes counted by torch, so that work done twice for gradient checkpointing does not count.
One family of diffusers is also trained by a plain loop as its example scripts have it, in the same run.

Without a GPU, tiny networks show that it runs; their figures say nothing, and are not kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from reelworks.core.shape import Shape
from reelworks.diffusion import objectives
from reelworks.diffusion.config import ObjectiveConfig
from reelworks.models import components, factory
from reelworks.models.api import Denoiser, DenoiserInputs
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.testing import contract
from reelworks.train.config import TrainConfig
from reelworks.train.state import TrainState

TRAIN = TrainConfig(max_steps=1)
OBJECTIVE = objectives.from_config(ObjectiveConfig())


@dataclass(frozen=True)
class Case:
    """A network and one of its buckets.

    Attributes:
        shape: In pixels.
        plain: It is also trained by a plain loop.
    """

    model: str
    shape: Shape
    batch_size: int
    autoencoder: AutoencoderConfig
    text: TextEncoderConfig
    plain: bool = False

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"{self.model} {self.shape} x{self.batch_size}"

    def latent(self) -> tuple[int, int, int]:
        """Frames, height and width of its latents."""
        return components.autoencoder_geometry(self.autoencoder).latent(self.shape)

    def tokens(self) -> int:
        """Of a step."""
        geometry = components.geometry(ModelConfig(name=self.model), self.autoencoder)
        return self.batch_size * geometry.tokens(self.shape)

    def build(self, device: str) -> Denoiser:
        """With fresh weights."""
        model = ModelConfig(name=self.model, gradient_checkpointing=True)
        return factory.build_denoiser(
            model,
            autoencoder=self.autoencoder,
            text=self.text,
            device=device,
            seed=0,
            compute=torch.bfloat16,
        )

    def clean(self, device: str) -> DenoiserInputs:
        """Random latents and texts."""
        made = contract.example(
            Shape(*self.latent()),
            self.model,
            batch=self.batch_size,
            autoencoder=self.autoencoder,
            text=self.text,
        )
        return DenoiserInputs(**{f.name: getattr(made, f.name).to(device) for f in dataclasses.fields(made)})


def _published(kind: type[Any], name: str) -> Any:
    """An encoder of which only the sizes are asked."""
    return kind(name=name, weights="not read")


def cases(tiny: bool) -> Iterator[Case]:
    """Three buckets of STDiT3-XL/2 and one of Wan 2.1, or tiny ones."""
    if tiny:
        for model in ("stdit3-tiny", "wan-tiny"):
            plain = model == "wan-tiny"
            yield Case(model, Shape(5, 32, 32), 2, AutoencoderConfig(stride=4), TextEncoderConfig(), plain)
        return
    autoencoder, text = _published(AutoencoderConfig, "opensora-1.2"), _published(TextEncoderConfig, "t5")
    for shape, batch_size in (
        (Shape(1, 1024, 1024), 16),
        (Shape(51, 480, 848), 2),
        (Shape(102, 720, 1280), 1),
    ):
        yield Case("stdit3-xl", shape, batch_size, autoencoder, text)
    autoencoder, text = _published(AutoencoderConfig, "wan-2.1"), _published(TextEncoderConfig, "wan")
    yield Case("wan-2.1-1.3b", Shape(49, 480, 832), 1, autoencoder, text, plain=True)


def peak_flops(device: str, size: int) -> float:
    """Floating-point operations per second of large products in bfloat16: the best of some."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / min(seconds(lambda: a @ b, device, times=1, warm=3) for _ in range(10))


def forward_flops(case: Case) -> int:
    """Of one forward pass, from shapes alone."""
    denoiser = case.build("meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        denoiser.predict(case.clean("meta"))
    return counter.get_total_flops()


def seconds(work: Callable[[], object], device: str, *, times: int, warm: int) -> float:
    """Mean time of one call."""
    for _ in range(warm):
        work()
    _wait(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    _wait(device)
    return (time.perf_counter() - began) / times


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def ours(case: Case, device: str, compiled: bool) -> Callable[[], None]:
    """A step of the trainer on one micro-batch."""
    denoiser, clean = case.build(device), case.clean(device)
    state, noise = TrainState.start(denoiser, TRAIN), torch.randn_like(clean.latent)
    if compiled:
        for block in denoiser.sharding().blocks:
            block.compile()

    def step() -> None:
        torch.autograd.backward(contract.loss(denoiser, OBJECTIVE, clean, noise))
        torch.nn.utils.clip_grad_norm_(denoiser.module.parameters(), TRAIN.max_grad_norm or 1.0)
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.update_ema(10**6, TRAIN.ema_decay)

    return step


def plain(case: Case, device: str, compiled: bool) -> Callable[[], None]:
    """A step as example scripts of diffusers have it: autocast, mean squared error, clipping, AdamW, an average."""
    from diffusers.training_utils import EMAModel

    clean, module = case.clean(device), case.build(device).module
    average = EMAModel(module.parameters(), decay=TRAIN.ema_decay or 0.0)
    optimizer = torch.optim.AdamW(module.parameters(), lr=TRAIN.learning_rate)
    noise = torch.randn_like(clean.latent)
    sigma = clean.time.view(-1, 1, 1, 1, 1) / 1000
    if compiled:
        module.compile()

    def step() -> None:
        noised = (1 - sigma) * clean.latent + sigma * noise
        with torch.autocast(device, dtype=torch.bfloat16):
            out = module(noised, clean.time, clean.text, return_dict=False)[0]
        loss: Tensor = torch.nn.functional.mse_loss(out.float(), noise - clean.latent)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        average.step(module.parameters())

    return step


@contextmanager
def _freed(device: str) -> Iterator[None]:
    """Leave the device's memory to the next case."""
    try:
        yield
    finally:
        gc.collect()
        torch.compiler.reset()
        if device == "cuda":
            torch.cuda.empty_cache()


def measure(case: Case, device: str, peak: float, steps: int) -> Iterator[dict[str, Any]]:
    """Every way to train a case."""
    work = 3 * forward_flops(case)
    ways = {"ours": ours, "plain loop": plain} if case.plain else {"ours": ours}
    for way, make in ways.items():
        for compiled in (False, True):
            with _freed(device):
                each = seconds(make(case, device, compiled), device, times=steps, warm=3)
            yield {
                "case": case.name,
                "way": way,
                "compiled": compiled,
                "step_s": each,
                "tokens_per_s": case.tokens() / each,
                "of_peak": work / each / peak,
            }


def main() -> None:
    """Measure, tell, and keep the result of a GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="timed, after three that are not")
    parser.add_argument("--only", default="", help="beginning of the names of what to measure")
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tiny = device == "cpu"
    peak = peak_flops(device, 256 if tiny else 8192)
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU, tiny networks: no figure counts"
    print(f"on {name}, torch {torch.__version__}: {peak / 1e12:.3g} TFLOP/s in bfloat16 products")
    told = []
    for case in cases(tiny):
        if not case.name.startswith(asked.only):
            continue
        for row in measure(case, device, peak, asked.steps):
            how = f"{row['way']}{', compiled' if row['compiled'] else ''}"
            print(f"{row['case']:34} {how:22} {row['tokens_per_s']:10.0f} tokens/s {row['of_peak']:6.1%} of the peak")
            told.append(row)
    result = {"device": name, "peak_flops": peak, "rows": told}
    if not tiny:
        file = Path(__file__).parent / "results" / "model.json"
        file.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
