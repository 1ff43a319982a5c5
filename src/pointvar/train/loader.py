"""Batches with their geometry made, the same for a seed, an epoch and an index, whoever makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pointvar.cloud import PointCloud
from pointvar.data import Sample, collate
from pointvar.geometry import Hierarchy

TRAIN, TEST, INIT, WEIGHTS, DROPOUT, ORDER, SAMPLE, LEVELS = range(8)
"""Names of streams of random numbers."""


def mix(*key: int) -> int:
    """A seed from a tuple of numbers, such that no two tuples share a stream."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)


def generator(*key: int) -> torch.Generator:
    """A generator of its own for each tuple of numbers."""
    return torch.Generator().manual_seed(mix(*key))


@dataclass(frozen=True)
class Prepared:
    """A batch as a network takes it: ``model(batch.features, batch.levels)``.

    Shapes (B clouds, N input points, M outputs: clouds, or points where a prediction is wanted):
        - features: ``[N, C]``
        - labels: ``[M]``, -1 where there is none
    """

    features: Tensor
    levels: Hierarchy
    labels: Tensor
    seed: int
    """Of whatever is random in the network, such as dropout."""
    indices: tuple[int, ...] = ()
    """Of the samples in their data set."""

    @property
    def num_clouds(self) -> int:
        return self.levels.input.num_clouds

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Prepared:
        return replace(
            self,
            features=self.features.to(device, non_blocking=non_blocking),
            levels=self.levels.to(device, non_blocking),
            labels=self.labels.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> Prepared:
        return replace(
            self,
            features=self.features.pin_memory(),
            levels=self.levels.pin_memory(),
            labels=self.labels.pin_memory(),
        )


class Network(Protocol):
    """What the networks here have in common: they make the geometry that they need."""

    def hierarchy(self, cloud: PointCloud, *, generator: torch.Generator | None = None) -> Hierarchy: ...


Transform = Callable[[Sample, torch.Generator], Sample]


@dataclass(frozen=True)
class Task:
    """What is to be prepared: a batch of an epoch."""

    epoch: int
    number: int
    indices: tuple[int, ...]


class Preparation(Dataset[Prepared]):
    """Turns a task into a batch: samples, their random changes, geometry. Runs in workers, too.

    What is random depends on ``seed``, the epoch and the index of the sample (its changes) or the number of
    the batch (its geometry), not on the process or on what was made before.
    """

    def __init__(
        self, samples: Dataset[Sample], network: Network, transform: Transform | None, seed: int, stream: int
    ) -> None:
        self.samples, self.transform, self.seed, self.stream = samples, transform, seed, stream
        self.hierarchy = network.hierarchy

    def __getitem__(self, task: Task) -> Prepared:  # type: ignore[override]
        key = (self.seed, self.stream, task.epoch)
        chosen = [self.samples[index] for index in task.indices]
        if self.transform is not None:
            chosen = [
                self.transform(sample, generator(*key, SAMPLE, index))
                for sample, index in zip(chosen, task.indices, strict=True)
            ]
        batch = collate(chosen)
        levels = self.hierarchy(batch.cloud, generator=generator(*key, LEVELS, task.number))
        seed = mix(*key, DROPOUT, task.number)
        return Prepared(batch.features, levels, batch.labels, seed, task.indices)


class Loader:
    """Batches of an epoch in random order, to be resumed at any batch.

    Batches are numbered over all processes together: of W ranks, rank r takes batches r, r + W, ..., so that W
    processes do what one does that accumulates the gradients of W batches. If the batches do not divide among
    the ranks, the first ones are used again at the end.

    Args:
        preparation: makes the batches.
        batch_size: clouds per batch.
        shuffle: a new order in each epoch.
        drop_last: leaves out a smaller last batch.
        workers: processes that prepare batches; 0: this one.
        pin: batches in page-locked memory.
        keep: keeps the batches for the next time; for batches that are the same in each epoch.
    """

    def __init__(
        self,
        preparation: Preparation,
        size: int,
        batch_size: int,
        shuffle: bool = True,
        drop_last: bool = False,
        workers: int = 0,
        pin: bool = False,
        keep: bool = False,
    ) -> None:
        self.preparation, self.size, self.batch_size = preparation, size, batch_size
        self.shuffle, self.drop_last, self.workers, self.pin = shuffle, drop_last, workers, pin
        self.epoch, self.rank, self.ranks = 0, 0, 1
        self._kept: list[Prepared] | None = [] if keep else None
        self._start = self._position = 0
        self._pool: Any = None
        if shuffle:
            self.sampler = self  # where Lightning looks for set_epoch

    @property
    def total(self) -> int:
        """Batches of an epoch, of all ranks together."""
        full, rest = divmod(self.size, self.batch_size)
        return full if self.drop_last or not rest else full + 1

    def __len__(self) -> int:
        if self.shuffle:
            return -(-self.total // self.ranks)
        return len(range(self.rank, self.total, self.ranks))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def set_rank(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks

    def state_dict(self) -> dict[str, int]:
        """How many batches of the present epoch have been given."""
        return {"position": self._position % max(len(self), 1)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Lets the next iteration start where another one was."""
        self._start = state["position"]

    def tasks(self, epoch: int) -> list[Task]:
        """The batches of an epoch for this rank."""
        if self.shuffle:
            key = generator(self.preparation.seed, self.preparation.stream, epoch, ORDER)
            order = torch.randperm(self.size, generator=key).tolist()
        else:
            order = list(range(self.size))
        size = self.batch_size
        every = [Task(epoch, i, tuple(order[i * size : (i + 1) * size])) for i in range(self.total)]
        if self.shuffle:
            every += every[: -len(every) % self.ranks]
        return every[self.rank :: self.ranks]

    def __iter__(self) -> Iterator[Prepared]:
        # Lightning sets the epoch only after it has asked for an iterator: look at it when the first batch is
        # wanted, not before.
        start, self._start = self._start, 0
        tasks = self.tasks(self.epoch if self.shuffle else 0)[start:]
        self._position = start
        for batch in self._prepared(tasks):
            self._position += 1
            yield batch

    def _prepared(self, tasks: Sequence[Task]) -> Iterator[Prepared]:
        if self._kept is not None:
            for number, task in enumerate(tasks):
                if number == len(self._kept):
                    self._kept.append(self.preparation[task])
                yield self._kept[number]
        elif self.workers == 0:
            for task in tasks:
                yield self.preparation[task]
        else:
            if self._pool is None:
                self._pool = DataLoader(
                    self.preparation,
                    batch_size=None,
                    sampler=_Queue(),
                    num_workers=self.workers,
                    persistent_workers=True,
                    pin_memory=self.pin,
                )
            self._pool.sampler.tasks = tasks
            yield from self._pool


class _Queue:
    """The tasks that a pool of workers is to do next."""

    tasks: Sequence[Task] = ()

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)
