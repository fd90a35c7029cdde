"""Tell which graphs the compiler made."""

from __future__ import annotations

from dataclasses import dataclass

from reelworks.training.observers.observer import StepObserver, TrainedStep, Training


@dataclass(frozen=True)
class CompiledGraphs(StepObserver):
    """Log the graphs that were compiled in a step."""

    training: Training

    def after_step(self, step: TrainedStep) -> None:
        """Log the news of a step, if there are any."""
        if (news := self.training.model.compiled.news()) is not None:
            self.training.log.event("compiled", step=step.number, **news)
