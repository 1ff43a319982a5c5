"""Many machines: Ray Data gives them to actors that hold the network, and replaces lost ones."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pointvar.commands.workers import Job, Result, Worker, device_of
from pointvar.data.formats import optional


class Actor:
    """A worker as Ray Data calls it: a row with a file in, a row with what became of it out."""

    def __init__(self, job: Job) -> None:
        self.worker = Worker(job)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return asdict(self.worker(Path(row["file"])))


def on_cluster(job: Job, files: Sequence[Path], address: str, workers: int | None = None) -> Iterator[Result]:
    """What becomes of the files, each from one of the actors of a Ray cluster.

    Network, files and output folder must have the same paths on all machines. A file that an actor was at
    when it was lost is given to another one; a copy is whole or not there, so that none is there in part.

    Args:
        job: what is done to each file.
        files: of the job.
        address: of the cluster as in ``ray.init``: ``auto`` for the one that runs, ``local`` for a new one.
        workers: number of actors, with a CPU or a GPU each; default: as many as the cluster has room for.
    """
    ray = optional("ray", "cluster")
    data = optional("ray.data", "cluster")
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    started, on_sigterm = not ray.is_initialized(), signal.getsignal(signal.SIGTERM)
    if started:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        data.DataContext.get_current().enable_progress_bars = False
        most = min(workers or len(files), len(files))
        pool = data.ActorPoolStrategy(min_size=most if workers else 1, max_size=most)
        on_gpu = job.device.startswith("cuda") or (job.device == "auto" and device_of("auto") == "cuda")
        resources = {"num_gpus": 1} if on_gpu else {"num_cpus": 1}
        rows = data.from_items([{"file": str(file)} for file in files], override_num_blocks=len(files))
        done = rows.map(Actor, fn_constructor_args=[job], compute=pool, **resources)
        for row in done.iter_rows():
            yield Result(**row)
    finally:
        if started:
            ray.shutdown()
            signal.signal(signal.SIGTERM, on_sigterm)  # ray has put its own in the place
