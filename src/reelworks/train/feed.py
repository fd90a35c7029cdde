"""From plan entries to work for the stream: paths, captions, and every draw about a clip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reelworks.core import draws
from reelworks.core.draws import Purpose
from reelworks.media import sampling
from reelworks.media.load import Request
from reelworks.prepare import position as positions
from reelworks.prepare.data import RecipeData
from reelworks.prepare.position import Position
from reelworks.schedule import plan as planning
from reelworks.schedule.plan import EpochPlan
from reelworks.stream.batches import Work


@dataclass(frozen=True)
class Feed:
    """Work for one rank."""

    data: RecipeData
    rank: int
    world: int

    def rows(self, position: Position, max_steps: int | None, max_epochs: int | None) -> Iterator[Work]:
        """Yield the micro-batches from a position on, over the edges of epochs, to the end of training."""
        while max_epochs is None or position.epoch < max_epochs:
            for row in range(position.row, position.plan.steps):
                if max_steps is not None and position.global_step + row - position.row >= max_steps:
                    return
                yield from self.row(position.plan, position.epoch, row)
            step = position.global_step + position.plan.steps - position.row
            position = positions.begin_epoch(
                self.data,
                position.spec,
                epoch=position.epoch + 1,
                global_step=step,
                generation=position.generation,
            )

    def row(self, plan: EpochPlan, epoch: int, row: int) -> Iterator[Work]:
        """Yield this rank's micro-batches of one step."""
        columns = list(planning.rank_columns(plan.rows[row], self.rank, self.world))
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
                real=plan.real[where],
            )

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
        real: NDArray[np.bool_] | None = None,
    ) -> Work:
        """Describe one micro-batch completely."""
        rows = np.searchsorted(self.data.rows.ordinal, ordinals)
        seed = self.data.recipe.seed
        first = draws.uniform(draws.hash64(seed, epoch, uids, copies, Purpose.FIRST_FRAME))
        crop = [draws.uniform(draws.hash64(seed, epoch, uids, copies, Purpose.CROP, axis)) for axis in (0, 1)]
        requests, fps = [], []
        for i, clip in enumerate(int(r) for r in rows):
            requests.append(
                self._request(clip, bucket, float(first[i]), (float(crop[0][i]), float(crop[1][i])))
            )
            fps.append(self._shown_fps(clip))
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
            real=np.ones(len(uids), dtype=np.bool_) if real is None else real,
            requests=tuple(requests),
            captions=tuple(self.data.rows.caption[int(r)].as_py() for r in rows),
            fps=tuple(fps),
        )

    def _request(self, row: int, bucket: int, first_frame: float, crop: tuple[float, float]) -> Request:
        config = self.data.recipe.data
        return Request(
            path=self.data.rows.file(row),
            is_image=bool(self.data.is_image[row]),
            shape=self.data.table.buckets[bucket].shape,
            step=float(sampling.frame_step(float(self.data.rows.fps[row]), config)),
            first_frame_draw=first_frame if config.first_frame == "random" else 0.0,
            crop_draw=crop if config.crop == "random" else (0.5, 0.5),
        )

    def _shown_fps(self, row: int) -> float:
        """Frames per second as the model is told them."""
        if self.data.is_image[row]:
            return sampling.IMAGE_FPS
        fps = float(self.data.rows.fps[row])
        return fps / float(sampling.frame_step(fps, self.data.recipe.data))
