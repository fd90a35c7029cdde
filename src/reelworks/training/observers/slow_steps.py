"""Warn, once each, of what makes steps slow: a busy machine under spinning threads, and waiting for clips."""

from __future__ import annotations

import itertools
import os
from collections import deque

import torch

from reelworks.core import cores, launcher, openmp_wait_policy
from reelworks.core.log import logger
from reelworks.training.coverage import speed
from reelworks.training.coverage.speed import Speed
from reelworks.training.observers.observer import StepObserver, TrainedStep, Training

_WINDOW = 50  # steps that are judged together
_FIRST_STEPS = 5  # of a window, which are left out


class SlowSteps(StepObserver):
    """Warn of steps that are slow for a reason that a person can change."""

    def __init__(self, training: Training) -> None:
        threads = torch.get_num_threads()
        self._may_spin = threads > 1 and training.world.device.type == "cpu" and not openmp_wait_policy.is_chosen()
        self._threads = threads * launcher.number("LOCAL_WORLD_SIZE")
        self._speeds: deque[Speed] | None = deque(maxlen=_WINDOW)

    def after_step(self, step: TrainedStep) -> None:
        """Judge a step by the load of the machine, and a whole window of steps by their speed."""
        if self._may_spin and openmp_wait_policy.is_busy(self._threads, share=1.0):
            self._may_spin = False
            logger.warning(
                f"other processes keep this machine busy (load {os.getloadavg()[0]:.1f} on "
                f"{cores.count()} cores), and threads that spin while they wait make steps many times slower: "
                "stop with Ctrl-C, set OMP_WAIT_POLICY=passive, and give the same command again"
            )
        if self._speeds is None:
            return
        self._speeds.append(step.speed)
        is_whole = step.number % _WINDOW == 0 and len(self._speeds) == _WINDOW
        later = itertools.islice(self._speeds, _FIRST_STEPS, None)  # the first clips are always waited for
        if is_whole and (advice := speed.total(later).advice):
            self._speeds = None
            logger.warning(advice)
