"""Who labels the files of ``pointvar predict``: this process, several on this machine, or a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pointvar.commands import usable_cores

if TYPE_CHECKING:
    from pointvar.data.survey import Survey

ATTEMPTS = 3
"""How often a file is given to processes that end in the middle."""


@dataclass(frozen=True)
class Job:
    """What is done to each file; it travels to other processes and machines."""

    model: Path
    output: Path
    survey: Survey
    votes: int
    seed: int
    points: int
    probability: bool
    device: str
    careful: bool = True
    """Errors are results, for there are other files."""


@dataclass(frozen=True)
class Result:
    """What became of a file."""

    file: str
    counts: list[int] | None = None
    """Points of each class; none if it failed."""
    warnings: tuple[str, ...] = ()
    """What may make it worse than it could be."""
    error: str = ""


class Worker:
    """Loads the network once, and labels files by it."""

    def __init__(self, job: Job) -> None:
        import numpy as np

        from pointvar.commands.evaluate import network_of
        from pointvar.report.palette import color
        from pointvar.train.predict import Predictor

        self.job = job
        model, notes = network_of(job.model)
        palette = [list(bytes.fromhex(color(i)[1:])) for i in range(len(notes["classes"]))]
        self.predict = Predictor(
            model.to(device_of(job.device)),
            notes,
            job.survey,
            votes=job.votes,
            seed=job.seed,
            sphere=job.points,
            confidence=job.probability,
            palette=np.array(palette, np.uint8),
        )

    def __call__(self, file: Path, progress: Callable[[float], None] | None = None) -> Result:
        from pointvar.data.relabel import copy_name

        try:
            counts, warnings = self.predict(file, self.job.output / copy_name(file), progress)
        except Exception as error:  # whatever is wrong with a file, the others go on
            if not self.job.careful:
                raise
            text = " ".join(str(error).split()) or type(error).__name__
            return Result(str(file), error=text if str(file) in text else f"{file}: {text}")
        return Result(str(file), counts, tuple(warnings))


def results(
    job: Job,
    files: Sequence[Path],
    workers: int | None,
    cluster: str | None,
    progress: Callable[[Path, float], None],
) -> Iterator[Result]:
    """What becomes of the files, in the order in which they are ready."""
    if not files:
        return
    if cluster is not None:
        from pointvar.commands.cluster import on_cluster

        yield from on_cluster(job, files, cluster, workers)
    elif workers is None or workers == 1:
        worker = Worker(job)
        for file in files:
            yield worker(file, partial(progress, file))
    else:
        yield from in_processes(job, files, workers)


def in_processes(job: Job, files: Sequence[Path], workers: int) -> Iterator[Result]:
    """Several processes on this machine, each with a network of its own; GPUs are shared out."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    import torch

    count = torch.cuda.device_count() if device_of(job.device) == "cuda" else 0
    devices = [f"cuda:{i % count}" if count else job.device for i in range(workers)]
    context, waiting = get_context("spawn"), list(files)
    for _ in range(ATTEMPTS):
        queue = context.Queue()
        for device in devices:
            queue.put(device)
        lost: list[Path] = []
        threads = max(1, usable_cores() // workers)
        start = (job, queue, threads)
        with ProcessPoolExecutor(workers, context, _start, start) as pool:
            futures = {pool.submit(_predict, file): file for file in waiting}
            for future in as_completed(futures):
                try:
                    yield future.result()
                except BrokenProcessPool:  # a process was killed, such as for its memory
                    lost.append(futures[future])
        waiting = lost
        if not waiting:
            return
    for file in waiting:
        yield Result(str(file), error=f"{file}: a worker process ended {ATTEMPTS} times: too little memory?")


_worker: Worker


def _start(job: Job, devices: Any, threads: int) -> None:
    """Makes a process a worker."""
    global _worker
    import torch

    torch.set_num_threads(threads)
    _worker = Worker(replace(job, device=devices.get()))


def _predict(file: Path) -> Result:
    return _worker(file)


def device_of(name: str) -> str:
    """A device by its name in torch, or the best for ``auto``."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device={name} cannot be used: {str(error).splitlines()[0]}") from error
    return name
