"""From plan entries to work for the stream: paths, captions, and every draw about a clip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from reelworks.data import decode_requests
from reelworks.data import position as positions
from reelworks.data.loader import Work
from reelworks.data.position import Position
from reelworks.recipe.dataset import RecipeData
from reelworks.schedule import plan as planning
from reelworks.schedule import ranks
from reelworks.schedule.plan import EpochPlan
from reelworks.train.config import TrainConfig


def last_step(train: TrainConfig, position: Position) -> int:
    """Step with which training ends; where epochs end it, as if all were as long as the plan here."""
    if train.max_epochs is None:
        assert train.max_steps is not None
        return train.max_steps
    left = (train.max_epochs - position.epoch) * position.plan.steps - position.row
    last = position.global_step + max(left, 0)
    return last if train.max_steps is None else min(last, train.max_steps)


def is_done(train: TrainConfig, position: Position) -> bool:
    """Tell whether training ends here."""
    if train.max_steps is not None and position.global_step >= train.max_steps:
        return True
    epochs = position.epoch + position.at_end
    return train.max_epochs is not None and epochs >= train.max_epochs


@dataclass(frozen=True)
class Feed:
    """Work for one rank."""

    data: RecipeData
    rank: int
    world: int

    def rows(self, position: Position) -> Iterator[Work]:
        """Yield the micro-batches from a position on, over the edges of epochs, to the end of training."""
        train = self.data.recipe.train
        max_steps, max_epochs = train.max_steps, train.max_epochs
        while max_epochs is None or position.epoch < max_epochs:
            left = position.plan.steps - position.row
            if max_steps is not None:
                left = min(left, max_steps - position.global_step)
            for ahead in range(left):
                if not train.skips(position.global_step + ahead + 1):
                    yield from self.row(position.plan, position.epoch, position.row + ahead)
            done = replace(position, global_step=position.global_step + left)
            last_epoch = max_epochs is not None and position.epoch + 1 >= max_epochs
            if last_epoch or (max_steps is not None and done.global_step >= max_steps):
                return
            position, _ = positions.next_epoch(self.data, position.spec, done)

    def row(self, plan: EpochPlan, epoch: int, row: int) -> Iterator[Work]:
        """Yield this rank's micro-batches of one step."""
        columns = list(ranks.columns(plan.rows[row], self.rank, self.world))
        for place, (micro_batch, filler) in enumerate(columns):
            where = plan.places(micro_batch)
            yield self.work(
                plan.uid[where],
                plan.copy[where],
                plan.ordinal[where],
                int(plan.bucket[where.start]),
                epoch=epoch,
                row=row,
                index=place * self.world + self.rank,
                last=place == len(columns) - 1,
                filler=filler,
                showing=plan.showing[where],
            )

    def _preserved(self, rows: NDArray[np.int64]) -> tuple[bool, ...]:
        names = {d.dataset_name for d in self.data.recipe.dataset if d.prior_preservation}
        return tuple(self.data.rows.dataset[row].as_py() in names for row in rows.tolist())

    def work(
        self,
        uids: NDArray[np.uint64],
        copies: NDArray[np.int64],
        ordinals: NDArray[np.int64],
        bucket: int,
        *,
        epoch: int,
        row: int = 0,
        index: int = 0,
        last: bool = True,
        filler: bool = False,
        showing: NDArray[np.int32] | None = None,
    ) -> Work:
        """Describe one micro-batch completely."""
        rows = np.searchsorted(self.data.rows.ordinal, ordinals)
        showing = np.zeros(len(uids), dtype=np.int32) if showing is None else showing
        drawn = planning.draw_copies(copies, showing)
        read = decode_requests.decode_requests(self.data, rows, drawn, bucket, epoch=epoch)
        return Work(
            epoch=epoch,
            row=row,
            index=index,
            last=last,
            filler=filler,
            bucket=bucket,
            shape=self.data.table.buckets[bucket].shape,
            uids=uids,
            copies=copies,
            showing=showing,
            requests=tuple(read),
            captions=tuple(decode_requests.caption_of_row(self.data, r) for r in rows.tolist()),
            fps=tuple(decode_requests.shown_fps(self.data, r) for r in rows.tolist()),
            companions=decode_requests.companion_requests(self.data, rows, read),
            preserved=self._preserved(rows),
        )
