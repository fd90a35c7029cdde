"""Actors that are slow or die."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from reelworks.training.encoding.encode_worker import EncodeWorker, Progress
from reelworks.training.precompute import encode_on_cluster
from reelworks.training.precompute.encode_on_cluster import ClusterJob, ClusterPart, EncodeActor


class SlowActor(EncodeActor):
    """Takes its time for each micro-batch, and notes the clips that it has encoded."""

    def __init__(self, job: ClusterJob) -> None:
        super().__init__(job)
        encode, noted = EncodeWorker._encode_batch, Path(job.recipe.encoded_folder).with_name("encoded-clips")

        def slowly(worker: Any, batch: Any, *args: Any) -> Any:
            with noted.open("a", encoding="utf-8") as file:
                file.write("".join(f"{uid}\n" for uid in batch.request.uids.tolist()))
            time.sleep(0.3)
            return encode(worker, batch, *args)

        EncodeWorker._encode_batch = slowly  # type: ignore[method-assign]


class DeadlyActor(EncodeActor):
    """Dies on each chunk of clips."""

    def _encode(self, part: ClusterPart, progress: Progress) -> None:
        if part.captions:
            super()._encode(part, progress)
            return
        encode_on_cluster._count_try(self._job, part)
        os._exit(139)
