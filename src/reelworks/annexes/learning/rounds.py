"""Measure clips with fixed noise at one timestep during training, each with its caption and with the empty one.

All clips are measured once, held-out ones as a yardstick, each with the same noise, so that what differs between two clips
is not their noise; then those whose captions help least are measured `MEASURED` times, so that no word is said by chance.
The base of a LoRA is measured with the empty caption, too: what the LoRA draws without being asked, it knows by heart.

With `train.clip_losses = "auto"`, rounds take 2 % of a training's time at most by its end, and come when they tell most of
captions: passes are counted and not timed, so that a run makes the same rounds wherever and however often it is resumed.
Nothing of training changes: each micro-batch seeds what its network draws.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from reelworks.annexes.learning.account import ClipLossAccount, Measured
from reelworks.annexes.learning.losses import DOUBTED, FILE, MEASURED
from reelworks.core import hash_rng
from reelworks.core.arrays import I64
from reelworks.data.loader.micro_batch import MicroBatch, MicroBatchRequest
from reelworks.data.loader.position import DataPosition
from reelworks.data.schedule.plan import Samples
from reelworks.models import components
from reelworks.models.objectives import objectives
from reelworks.training.observers.observer import Pause, StepObserver, TrainedStep, Training
from reelworks.training.observers.validation import shared_out
from reelworks.training.recipe.dataset import RecipeData
from reelworks.training.recipe.recipe import Recipe
from reelworks.training.step import draws, progress
from reelworks.training.step.examples import fixed_example
from reelworks.training.step.losses import Passes

# Clips measured of those trained: both take two forward passes, with and without the caption, or with a backward pass that
# is one at least. Where all weights learn, that is two, so that more can be measured in 2 % of the time.
SHARE, SHARE_OF_ALL_WEIGHTS = 0.02, 0.022
# Share of these where the base of a LoRA takes a third pass, which it does if so all clips can be measured.
_WITH_BASE = 2 / 3
# Largest set of which all clips are measured at once: what a LoRA knows by heart grows, and is to be compared.
_AT_ONCE = 256
# Share of the steps in which "auto" measures nothing: a network from random weights learns what captions mean at all, and
# another one what is common to all clips, which hides what captions tell.
_BEGIN, _BEGIN_WITH_WEIGHTS = 0.2, 0.1
# Each caption, a wrong one too, is learnt by heart later: of 400 pictures at 50 showings, half of the wrong captions stood out
# at a third of the steps, and few at the end. So rounds come five times as often, and are all made in a fifth of the steps.
_HASTE = 5
_EVERY = 100  # steps between rounds of a number of clips
# Clips of a round of "auto" at least: it begins by starting threads that read, which takes as long as a pass of few clips.
_FEWEST = 8
# Timestep of measurements, as the share of those of training that have less noise: there captions matter. Nearer to pure
# noise, noise matters more.
_TIME = 0.85
_AHEAD = 16  # times as many clips as a round has, among which those of one bucket are found


@dataclass(frozen=True)
class ClipLossRounds(StepObserver):
    """Keep the losses of trained clips, and measure rounds of clips with the weights in training when they are due."""

    training: Training
    account: ClipLossAccount = field(default_factory=ClipLossAccount)

    def begin(self, now: Pause) -> None:
        """Open the account, and measure what a signal came before."""
        if (content := self.training.model.state.observed.get(FILE)) is not None:
            self.account.load(content)
        self.account.begin(self.training.data, now.position, is_main=self.training.world.is_main)
        if not now.is_over():
            self._measure_round(now)

    def after_step(self, step: TrainedStep) -> None:
        """Note the losses of a step's clips."""
        result = step.result
        batches = result.batches if result.applied else ()
        of_clips = np.array(result.clip_losses), np.array(result.clip_times)
        self.account.add(step.number, batches, *of_clips, trained=result.clips + result.repeats)

    def metrics(self, now: Pause) -> dict[str, float]:
        """Measure a round of clips with fixed noise, if one is due; a checkpoint has no metric of it."""
        self._measure_round(now)
        return {}

    def files(self, step: int) -> dict[str, bytes]:
        """Return the account up to a step. Collective."""
        return {FILE: self.account.to_bytes(self.training.world, step)}

    def _measure_round(self, now: Pause) -> None:
        """Measure a round of clips if one is due. Collective."""
        training, position = self.training, now.position
        world, account, module = training.world, self.account, training.model.state.module
        size, with_base = self._round_if_due(position)
        if not size or self._is_cut_short(now):
            return
        began = time.monotonic()
        account.bring_together(world, now.step)
        chosen: Any = world.broadcast(self._choose(size) if world.is_main else None)
        clips = sum(len(batch) for batch, _ in chosen)
        in_training = [each for each in module.modules() if each.training]
        module.eval()
        measured = self._measure(chosen, now, with_base=with_base)
        for each in in_training:
            each.training = True
        if measured is None:
            return
        parts: list[Any] = world.gather_data(measured)
        if world.is_main and clips:
            account.of_all.note_measured(Measured.joined(found for part in parts for found in part))
        account.visits += clips
        account.last = now.step
        training.log.event("clip_losses", step=now.step, clips=clips, seconds=time.monotonic() - began)

    @cached_property
    def _has_base(self) -> bool:
        """Whether a LoRA is trained on a base that has learnt something."""
        recipe = self.training.data.recipe
        return recipe.lora is not None and recipe.model.weights is not None

    def _round_if_due(self, position: DataPosition) -> tuple[int, bool]:
        """Return the clips of the round that is due, or 0, and whether it has the base; equal on all ranks."""
        recipe, account, step = self.training.data.recipe, self.account, position.global_step
        wanted = recipe.train.clip_losses
        if step == account.last or not step:
            return 0, False
        if isinstance(wanted, int):
            return wanted * progress.is_due(recipe.train.clip_losses_every or _EVERY, step), self._has_base
        end = progress.total_steps(recipe.train, position)
        # Each rank as many micro-batches: fewer clips would leave ranks idle, and take as long.
        size = position.spec.micro_batches_per_step * max(position.spec.batch_sizes)
        size *= math.ceil(_FEWEST / size)
        share = SHARE_OF_ALL_WEIGHTS if recipe.lora is None else SHARE
        knows, every = recipe.model.weights is not None, max(size, len(self._candidates[0]))
        with_base = self._has_base and share * _WITH_BASE * account.trained * (end or step) / step >= every
        if with_base:
            share *= _WITH_BASE
            if end and not account.visits and every <= _AT_ONCE:
                return (every if step >= _BEGIN_WITH_WEIGHTS * end else 0), True
        most = affordable(step=step, end=end, trained=account.trained, share=share, knows_captions=knows)
        return (size if account.visits + size <= most else 0), with_base

    @cached_property
    def _candidates(self) -> tuple[Samples, NDArray[np.bool_]]:
        """The clips that epochs train and those that are held out, each once, and which those are."""
        return self.training.data.each_clip()

    @cached_property
    def _order(self) -> tuple[I64, I64]:
        """Order of the candidates by a draw of each, and their rows in the account."""
        row = self.account.of_all.of_uids(self._candidates[0].uid)
        drawn = hash_rng.hash64(self.training.data.recipe.seed, "clip_losses", self.account.of_all.table.key[row])
        return np.argsort(drawn, kind="stable"), row

    def _choose(self, size: int) -> list[tuple[I64, I64]]:
        """Return indices of candidates and how often each was measured, by micro-batch."""
        (clips, held_out), (order, row), known = self._candidates, self._order, self.account.of_all.table
        kind = clips.bucket if clips.layout is None else clips.bucket << 20 | clips.layout
        times, gain, sizes = known.measured[row], known.gain[row], self.training.data.table.batch_sizes()
        trained = (times > 0) & ~held_out
        lowest = trained & (gain <= np.quantile(gain[trained], DOUBTED)) if trained.any() else trained
        late = np.where(held_out, np.inf, np.where(lowest, times / MEASURED, times))
        chosen = choose(times[order], late[order], kind[order], sizes[clips.bucket[order]], size)
        return [(order[batch], times[order[batch]].astype(np.int64)) for batch in chosen]

    def _is_cut_short(self, now: Pause) -> bool:
        """Whether a signal came; at the end, no later checkpoint could hold what the next start would make up. Collective."""
        return not now.is_over() and self.training.stops()

    @torch.no_grad()
    def _measure(self, chosen: list[tuple[I64, I64]], now: Pause, *, with_base: bool) -> list[Measured] | None:
        """Return the losses of this rank's clips; None if they are cut short."""
        training, world, found = self.training, self.training.world, []
        own = range(world.data_rank, len(chosen) + world.data_size, world.data_size)
        budget_bytes = training.data.recipe.data.prefetch_budget_bytes
        requests = shared_out(training.source, world, len(chosen), lambda i: self._candidates[0].take(chosen[i][0]))
        batches = training.encoder.read(requests, now.pool, budget_bytes)
        for place, batch in zip(own, batches, strict=False):
            if self._is_cut_short(now):
                return None
            picked, times = chosen[min(place, len(chosen) - 1)]
            training.model.sequence.use(batch.request.sequence_degree)
            measured = self._losses(batch, picked, times, max(len(each) for each, _ in chosen), with_base=with_base)
            if not batch.is_idle:
                found.append(measured)
        return found

    def _losses(self, batch: MicroBatch, picked: I64, times: I64, most: int, *, with_base: bool) -> Measured:
        recipe, request = self.training.data.recipe, batch.request
        # Guidance in the target would be that of another network.
        objective = recipe.objective.model_copy(update={"target_guidance_scale": None})
        # With new noise each time, so that their mean says more.
        words_B = hash_rng.hash64(recipe.seed, "clip_losses", times)
        time_B = np.full(len(picked), self._time(request))
        example = fixed_example(batch, self.training.encoder, objective, words_B, time_B, guided=True)
        at_least = most if components.family_config(recipe.model).network.passes.clip_by_clip else 0
        # One pass of both: that of a small network takes as long for twice the clips, and without gradients these need
        # less memory than those of a step.
        both = example.inputs.followed_by(example.uncaptioned())
        model = self.training.model
        passes = Passes(model.boundary, model.state.module, model.compiled)
        outputs = [*passes.trained(both, 2 * at_least).halves()]
        if with_base:
            outputs.append(passes.base(example.uncaptioned(), at_least))
        each_B = [torch.where(example.valid_mask, example.losses(output).float(), torch.nan) for output in outputs]
        captioned, uncaptioned, *base = torch.stack(each_B).cpu().double().numpy()
        bucket = np.full(len(picked), request.bucket)
        of_base = base[0] if base else np.full(len(picked), np.nan)
        return Measured(request.uids, bucket, self._candidates[1][picked], time_B, captioned, uncaptioned, of_base)

    def _time(self, request: MicroBatchRequest) -> float:
        """Return the timestep of measurements in the bucket of a request."""
        objective, shape = self.training.data.recipe.objective, request.shape
        ratio = draws.shift_ratio(objective, shape, self.training.encoder.encoders.autoencoder.geometry.latent(shape))
        _, times = objectives.from_config(objective).times(torch.tensor([_TIME], dtype=torch.float64), ratio)
        return float(times)


class _NotedLosses:
    def require(self, recipe: Recipe) -> None:
        """Any training can be noted."""

    def prepare(self, data: RecipeData) -> Callable[[Training], StepObserver] | None:
        """Note losses where the recipe asks for it."""
        return None if data.recipe.train.clip_losses == "off" else ClipLossRounds


KIND = _NotedLosses()


def affordable(*, step: int, end: int | None, trained: int, share: float, knows_captions: bool) -> float:
    """Return how many clips "auto" may have measured after a step that makes `trained` clips, of which it measures a share.

    `end` is the last step, if it is known, and `knows_captions` False for a network that began with random weights.
    """
    if end is None:
        return share * trained
    begins = end * (_BEGIN_WITH_WEIGHTS if knows_captions else _BEGIN)
    return share * trained * min(_HASTE * max(1 - begins / step, 0), max(end / step, 1))


def choose(measured: NDArray[np.int16], late: NDArray[np.float64], kind: I64, batch_size: I64, size: int) -> list[I64]:
    """Return micro-batches of at most `size` clips that are measured next.

    Those that were never measured come first, in the order that they are given in, and then those that are least `late`. The clips of a micro-batch are of one kind, and at most `batch_size` of them.
    """
    left, chosen = _first(measured, late, _AHEAD * size), []
    while size > 0 and len(left):
        alike = np.flatnonzero(kind[left] == kind[left[0]])[: min(size, int(batch_size[left[0]]))]
        chosen.append(left[alike])
        left, size = np.delete(left, alike), size - len(alike)
    return chosen


def _first(measured: NDArray[np.int16], late: NDArray[np.float64], count: int) -> I64:
    """Return the indices of about so many clips that are to be measured first."""
    new = np.flatnonzero(measured == 0)[:count]
    if len(new) == count:  # of millions, most are never measured
        return new
    again = np.flatnonzero(measured > 0)
    order = np.argsort(late[again], kind="stable")
    return np.concatenate([new, again[order[: count - len(new)]]])
