"""Lightning's ModelCheckpoint in a training of three steps: saves after each, keeps two, and tells of each.

It writes into the folder for temporary files first and moves the whole; a move from another file system is a
copy.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import one_save
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader

STEPS = 3


class Module(LightningModule):
    """Its weights at the end of step n are those of `one_save.state(n)`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros_like(one_save.state(0)["model"]["weight"]))

    def training_step(self, batch: Any, _: int) -> Any:
        self.weight.data.copy_(one_save.state(self.global_step + 1)["model"]["weight"])
        return (self.weight * 0).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Tell(Callback):
    """Tells of a step once the checkpoint callback, which runs last, has saved the one after it."""

    def __init__(self, told: Callable[[int], None]) -> None:
        self.told = told

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, index: int) -> None:
        if trainer.global_step:
            self.told(trainer.global_step)


def work(folder: Path, told: Callable[[int], None], temporary: Path) -> None:
    tempfile.tempdir = str(temporary)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    saver = ModelCheckpoint(folder, filename="{step}", monitor="step", mode="max", save_top_k=2, every_n_train_steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            max_steps=STEPS,
            accelerator="cpu",
            callbacks=[saver, Tell(told)],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(), DataLoader(cast(Any, list(range(STEPS)))))


def load(folder: Path) -> tuple[int, Any]:
    """The newest by name; before the first has appeared, step 0."""
    found = sorted((int(path.stem.rpartition("=")[2]), path) for path in folder.glob("*.ckpt"))
    if not found:
        return 0, {"weight": torch.zeros(0)}
    step, newest = found[-1]
    return step, torch.load(newest, weights_only=False)["state_dict"]


def expected(step: int) -> Any:
    return {"weight": one_save.state(step)["model"]["weight"] if step else torch.zeros(0)}
