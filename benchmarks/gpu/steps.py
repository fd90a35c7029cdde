"""How fast a training step is, of ours and of a plain loop over the same network of diffusers.

A step is the trainer's own, from clean latents to updated weights and their average; reading and encoding are left out.
Its work is three forward passes, counted by torch on the meta device and compared with a formula, so that work done
twice for gradient checkpointing does not count. `of_peak` is this work over the time and the published speed.

The plain loop is what example scripts of diffusers do: bfloat16 by autocast, mean squared error, clipping, AdamW and
`EMAModel`; compiled block by block.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu import formulas, machine
from reelworks.core.shape import Geometry, Shape
from reelworks.data.buckets import table
from reelworks.data.buckets.config import BucketEntryConfig, BucketsConfig
from reelworks.data.buckets.entry import Recomputation
from reelworks.data.buckets.table import Bucket, BucketTable
from reelworks.models import components, factory, recompute, registry
from reelworks.models.adapters.config import LoraConfig
from reelworks.models.api import Denoiser, DenoiserInputs
from reelworks.models.attention import attention_audit
from reelworks.models.attention.attention_audit import ReplacedKernels
from reelworks.models.attention.attention_calls import ATTEND, AttentionCall
from reelworks.models.config import AutoencoderConfig, ModelConfig, TextEncoderConfig
from reelworks.models.objectives import objectives
from reelworks.models.objectives.config import ObjectiveConfig
from reelworks.models.recompute import Recompute
from reelworks.testing import contract
from reelworks.training.loop.config import TrainConfig
from reelworks.training.preflight import kernels
from reelworks.training.step.compiled_blocks import CompiledBlocks
from reelworks.training.step.state import TrainState

TRAIN = TrainConfig(max_steps=1)
OBJECTIVE = objectives.from_config(ObjectiveConfig())
_SECONDS = {"cuda": 5.0, "cpu": 0.3}  # of timing
_LEARNT_STEPS = 10**6  # after which the average moves at its final rate


class Way(NamedTuple):
    """A way to train: whose loop, compiled or not, and what the backward pass computes again."""

    loop: str
    compiled: bool
    checkpointing: Recomputation


@dataclass(frozen=True)
class Case:
    """A network in full size with fresh weights, and one entry of buckets.

    Attributes:
        ratios: Aspect ratios of the entry; the first one's bucket is timed.
        token_families: As in `[buckets]`.
        rank: Rank of a LoRA on the network, which is frozen in bfloat16; None trains all weights.
    """

    model: str
    resolution: str
    num_frames: int
    batch_size: int
    ways: tuple[Way, ...]
    ratios: tuple[str, ...] = ("16:9",)
    token_families: bool = False
    rank: int | None = None

    def parts(self) -> tuple[AutoencoderConfig, TextEncoderConfig]:
        """Return the encoders whose sizes the network takes; they are not built."""
        if self.model.endswith("-tiny"):
            return AutoencoderConfig(stride=4), TextEncoderConfig()
        parts = registry.PRESETS[self.model].parts
        return AutoencoderConfig(name=parts.autoencoder, weights="-"), TextEncoderConfig(name=parts.text, weights="-")

    @property
    def geometry(self) -> Geometry:
        """Strides and patches."""
        return components.geometry(ModelConfig(name=self.model), self.parts()[0])

    def table(self) -> BucketTable:
        """Return the buckets of all ratios."""
        entry = BucketEntryConfig(resolution=self.resolution, num_frames=self.num_frames, batch_size=self.batch_size)
        config = BucketsConfig(aspect_ratios=list(self.ratios), token_families=self.token_families)
        return table.build([entry], config, self.geometry)

    def bucket(self) -> Bucket:
        """Return the bucket that is timed."""
        return self.table().buckets[0]

    @property
    def name(self) -> str:
        """Model, shape and batch size, as figures are named."""
        return f"{self.model} {self.bucket().shape} x{self.batch_size}"

    def build(self, device: str, checkpointing: Recompute = False) -> Denoiser:
        """Build the network on the device, where drawing its weights takes no time.

        Under a LoRA weights are drawn as they are stored: in float32 large ones would not fit.
        """
        autoencoder, text = self.parts()
        lora = None if self.rank is None else LoraConfig(rank=self.rank)
        built_on = device if lora is None else "meta"
        with torch.device(built_on):
            denoiser = factory.build_denoiser(
                ModelConfig(name=self.model, gradient_checkpointing=checkpointing),
                autoencoder=autoencoder,
                text=text,
                device=built_on,
                seed=0,
                compute=torch.bfloat16,
                lora=lora,
            )
        if built_on != device:
            draw(denoiser.module, device)
        return denoiser

    def clean(self, device: str, bucket: Bucket | None = None) -> DenoiserInputs:
        """Return random latents and texts of a bucket."""
        autoencoder, text = self.parts()
        latent = components.autoencoder_geometry(autoencoder).latent((bucket or self.bucket()).shape)
        made = contract.example(Shape(*latent), self.model, batch=self.batch_size, autoencoder=autoencoder, text=text)
        return made.each(lambda value: value.to(device))

    def forward_flops(self) -> int:
        """Count the operations of a forward pass, from shapes alone."""
        denoiser = self.build("meta")
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            denoiser.predict(self.clean("meta"))
        return counter.get_total_flops()

    def attention_flops(self) -> int:
        """Count those of its attention."""
        with torch.no_grad(), _AttentionCounter() as counter:
            self.build("meta").predict(self.clean("meta"))
        return counter.flops


class _AttentionCounter(TorchFunctionMode):
    """Count the operations of attention while entered."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is ATTEND:
            query, key, value = (*args, *(kwargs or {}).values())[:3]
            self.flops += 2 * key.shape[-2] * (query.numel() + query.numel() // query.shape[-1] * value.shape[-1])
        return func(*args, **(kwargs or {}))


def draw(module: nn.Module, device: str) -> None:
    """Give a network of shapes alone small values on a device, its tables included: what they are changes no time."""
    for each in module.modules():
        tables: tuple[dict[str, Any], ...] = (each._parameters, each._buffers, vars(each))
        for held in tables:
            for name, value in held.items():
                if isinstance(value, Tensor) and value.is_meta:
                    held[name] = _drawn(value, device)


def _drawn(value: Tensor, device: str) -> Tensor:
    filled = torch.zeros(value.shape, dtype=value.dtype, device=device)
    filled = filled.normal_(std=0.02) if value.is_floating_point() or value.is_complex() else filled
    return nn.Parameter(filled, value.requires_grad) if isinstance(value, nn.Parameter) else filled


_BOTH: tuple[Way, ...] = (Way("ours", True, "selective"), Way("ours", True, False), Way("ours", False, "selective"))
_COMPARED: tuple[Way, ...] = (
    Way("ours", True, "selective"),
    Way("diffusers", True, True),
    Way("ours", True, False),
    Way("diffusers", True, False),
    Way("ours", True, True),
    Way("diffusers", False, True),
    Way("ours", False, True),
)
# Batch sizes take about 100 GB at most, by `training.memory.meter`; smaller devices get fewer clips.
_MEMORY_BYTES = 140e9
CASES = {
    "stdit3-51x480p": Case("stdit3-xl", "480p", 51, 1, _BOTH),
    "stdit3-16x240p": Case("stdit3-xl", "240p", 16, 24, _BOTH),
    "stdit3-1x720p": Case("stdit3-xl", "720p", 1, 12, _BOTH),
    "wan-49x480p": Case("wan-2.1-1.3b", "480p", 49, 1, _COMPARED),
    "sd3.5-1024px": Case("sd3.5-medium", "1024px", 1, 8, _COMPARED, ("1:1",)),
}
TINY = {
    "stdit3-51x480p": Case("stdit3-tiny", "32px", 5, 1, _BOTH),
    "stdit3-16x240p": Case("stdit3-tiny", "24px", 5, 2, _BOTH),
    "stdit3-1x720p": Case("stdit3-tiny", "32px", 1, 2, _BOTH),
    "wan-49x480p": Case("wan-tiny", "48px", 5, 2, _COMPARED),
    "sd3.5-1024px": Case("sd3-tiny", "64px", 1, 4, _COMPARED, ("1:1",)),
}


@dataclass
class Loop:
    """A step that can be taken again and again, its kernels of attention, and how many graphs it has compiled."""

    step: Callable[[], None]
    network: nn.Module
    kernels: ReplacedKernels = dataclasses.field(default_factory=ReplacedKernels)
    graphs: Callable[[], int] = dataclasses.field(default=lambda: int(_counters()["unique_graphs"]))


def _counters() -> Any:
    dynamo: Any = torch._dynamo.utils
    return dynamo.counters["stats"]


def forget_graphs() -> None:
    """Count graphs from zero again."""
    _counters().clear()


def _backend(device: str) -> str:
    """Return inductor on a GPU; on a CPU it would take minutes to show nothing."""
    return "inductor" if device == "cuda" else "eager"


@functools.cache
def calls(case: Case) -> list[AttentionCall]:
    """Return the attention calls of a step in all buckets of a case."""
    return kernels.calls_of(case.build("meta"), None, [case.clean("meta", bucket) for bucket in case.table().buckets])


@functools.cache
def chosen_kernels(case: Case, device: str) -> ReplacedKernels:
    """Return what a training puts in place of torch's kernels of attention on a device."""
    return attention_audit.audit(calls(case), torch.device(device), times=device == "cuda")


def ours(case: Case, way: Way, device: str) -> Loop:
    """Return the trainer's step on micro-batches of all buckets of a case, in turn."""
    instead = chosen_kernels(case, device)
    denoiser = case.build(device, "auto")
    buckets, turn = case.table(), iter(range(10**9))
    clean = [case.clean(device, bucket) for bucket in buckets.buckets]
    noise = [torch.randn_like(each.latent) for each in clean]
    state = TrainState.start(denoiser, TRAIN)
    network = components.family_config(ModelConfig(name=case.model)).network
    blocks = denoiser.sharding().blocks if way.compiled else ()
    compiled = CompiledBlocks(blocks, network, buckets, case.geometry, len(buckets.buckets), _backend(device))

    def step() -> None:
        index = next(turn) % len(clean)
        work: Any = SimpleNamespace(bucket=index, uids=range(case.batch_size))
        with compiled.running(work, clean[index].text_mask), recompute.by(way.checkpointing):
            torch.autograd.backward(contract.loss(denoiser, OBJECTIVE, clean[index], noise[index]))
        torch.nn.utils.clip_grad_norm_(denoiser.module.parameters(), TRAIN.max_grad_norm or 1.0)
        state.optimizer.step()
        state.optimizer.zero_grad()
        state.update_ema(_LEARNT_STEPS, TRAIN.ema_decay)

    return Loop(step, denoiser.module, instead)


def plain(case: Case, way: Way, device: str) -> Loop:
    """Return a step as example scripts of diffusers have it."""
    from diffusers.training_utils import EMAModel

    adapted: Any = case.build("meta").module
    with torch.device(device):
        module: Any = type(adapted).from_config(dict(adapted.config))
    module.train()
    if way.checkpointing:
        module.enable_gradient_checkpointing()
    if way.compiled:
        _compile_blocks(module, device)
    clean = case.clean(device)
    average = EMAModel(module.parameters(), decay=TRAIN.ema_decay or 0.0, foreach=True)
    optimizer = torch.optim.AdamW(module.parameters(), lr=TRAIN.learning_rate)
    noise = torch.randn_like(clean.latent)
    sigma = clean.time.view(-1, 1, 1, 1, 1) / 1000
    called = _CALLS[type(adapted).__name__]

    def step() -> None:
        noised = (1 - sigma) * clean.latent + sigma * noise
        with torch.autocast(device, dtype=torch.bfloat16):
            out = called(module, noised, clean)
        loss: Tensor = torch.nn.functional.mse_loss(out.float(), noise - clean.latent)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        average.step(module.parameters())

    return Loop(step, module)


def _compile_blocks(module: Any, device: str) -> None:
    """Compile as diffusers advises; one block after the other where a class does not say which blocks are alike."""
    if module._repeated_blocks:
        module.compile_repeated_blocks(backend=_backend(device), dynamic=False)
        return
    for block in module.transformer_blocks:
        block.compile(backend=_backend(device), dynamic=False)


def _call_wan(module: Any, noised: Tensor, clean: DenoiserInputs) -> Tensor:
    out: Tensor = module(noised, clean.time, clean.text, return_dict=False)[0]
    return out


def _call_sd3(module: Any, noised: Tensor, clean: DenoiserInputs) -> Tensor:
    out: Tensor = module(
        noised[:, :, 0],
        encoder_hidden_states=clean.text,
        pooled_projections=clean.pooled,
        timestep=clean.time,
        return_dict=False,
    )[0]
    return out[:, :, None]


_CALLS: dict[str, Callable[[Any, Tensor, DenoiserInputs], Tensor]] = {
    "WanTransformer3DModel": _call_wan,
    "SD3Transformer2DModel": _call_sd3,
}


def measure(case: Case, way: Way, device: str, step_flops: int, speed: machine.Speed) -> dict[str, Any]:
    """Time one way to train a case, and leave the device's memory as it was."""
    torch.manual_seed(0)
    torch.compiler.reset()
    forget_graphs()
    began = time.perf_counter()
    machine.reset_peak(device)
    loop = (ours if way.loop == "ours" else plain)(case, way, device)
    built = time.perf_counter() - began
    with loop.kernels.replaced():
        times = machine.timed(loop.step, device, most_seconds=_SECONDS[device])
    tflops = step_flops / times.median / 1e12
    return {
        **_named(case, way),
        "step_s": round(times.median, 5),
        "slowest_over_fastest": round(times.slowest / times.fastest, 3),
        "build_s": round(built, 1),
        "first_step_s": round(times.first, 2),
        "tokens_per_s": round(case.batch_size * case.bucket().tokens / times.median),
        "tflops": round(tflops, 4),
        "of_peak": None if speed.published is None else round(tflops / speed.published, 4),
        "of_measured_peak": round(tflops / speed.measured, 4),
        "peak_gb": machine.peak_gb(device),
        "graphs": loop.graphs() if way.compiled else 0,
        "attention": _instead(loop.kernels),
        "parameters": sum(p.numel() for p in loop.network.parameters()),
    }


def _instead(replaced: ReplacedKernels) -> str:
    """Return which kernels of attention take the place of which."""
    found = {f"{one.instead} for {one.kernel}" for one in (*replaced.quicker, *replaced.faults)}
    return "; ".join(sorted(found)) or "as torch chooses"


def _named(case: Case, way: Way) -> dict[str, Any]:
    names: dict[Recomputation, str] = {False: "none", True: "full"}
    checkpointing = names.get(way.checkpointing, "selective")
    return {"case": case.name, "loop": way.loop, "compiled": way.compiled, "checkpointing": checkpointing}


def fitting(case: Case, device: str) -> Case:
    """Return a case with fewer clips for a device with less memory than the cases were chosen for."""
    if device != "cuda":
        return case
    share = min(torch.cuda.get_device_properties(0).total_memory / _MEMORY_BYTES, 1.0)
    return dataclasses.replace(case, batch_size=max(int(case.batch_size * share), 1))


def rows(unit: str, device: str, tiny: bool) -> Iterator[dict[str, Any]]:
    """Yield the work of a case, the time of each way to train it, and how ours compares."""
    warnings.filterwarnings("ignore")  # of compilers; what matters fails
    case, speed = fitting((TINY if tiny else CASES)[unit], device), machine.speed(device)
    flops = case.forward_flops()
    formula = formulas.forward_flops(case.build("meta").module, case.clean("meta"))
    yield {
        "case": case.name,
        "tokens": case.batch_size * case.bucket().tokens,
        "step_tflop": round(3 * flops / 1e12, 6),
        "counted_over_formula": round(flops / formula, 4),
    }
    speeds: dict[Way, float] = {}
    for way in case.ways:
        try:
            row = _measure_or_fewer(case, way, device, 3 * flops, speed)
            speeds[way] = row["tokens_per_s"]
        except Exception as error:  # of one way; the others go on
            row = {**_named(case, way), "error": short(error)}
        free(device)
        yield row
    if told := _compared(speeds):
        yield {"case": case.name, **told}


def short(error: Exception) -> str:
    """Return an error on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:600]


def _measure_or_fewer(case: Case, way: Way, device: str, step_flops: int, speed: machine.Speed) -> dict[str, Any]:
    """Time a way, with half the clips if memory does not suffice for all; speeds by token stay comparable."""
    try:
        return measure(case, way, device, step_flops, speed)
    except torch.OutOfMemoryError:
        if case.batch_size == 1:
            raise
    free(device)  # outside of the handler, whose error holds the tensors of the step
    size = case.batch_size // 2
    return measure(dataclasses.replace(case, batch_size=size), way, device, step_flops * size // case.batch_size, speed)


def free(device: str) -> None:
    """Give memory back that nothing needs."""
    torch.compiler.reset()  # graphs may hold weights
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def _compared(speeds: dict[Way, float]) -> dict[str, float]:
    """Return how many times as fast ours is: each loop at its best, and both with the same settings."""
    theirs = {way: speed for way, speed in speeds.items() if way.loop == "diffusers"}
    own = {way: speed for way, speed in speeds.items() if way.loop == "ours"}
    told: dict[str, float] = {}
    if theirs and own:
        told["best_over_best"] = round(max(own.values()) / max(theirs.values()), 3)
        for way, speed in theirs.items():
            if (same := way._replace(loop="ours")) in own:
                told[f"same_settings_{'compiled' if way.compiled else 'eager'}"] = round(own[same] / speed, 3)
    eager = [speed for way, speed in own.items() if not way.compiled]
    compiled = [speed for way, speed in own.items() if way.compiled]
    if eager and compiled:
        told["compiled_over_eager"] = round(max(compiled) / max(eager), 3)
    return told
