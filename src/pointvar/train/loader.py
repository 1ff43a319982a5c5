"""Batches with their geometry made, the same for a seed, an epoch and an index, whoever makes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pointvar.data import CropSampler, Sample, collate
from pointvar.data.crops import Place
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


Transform = Callable[[Sample, torch.Generator], Sample]
Item = int | Place
"""A sample of a data set, or a place in a scene."""


@dataclass(frozen=True)
class Task:
    """What is to be prepared: a batch of an epoch."""

    epoch: int
    number: int
    items: tuple[Item, ...]
    counts: bool = True
    """False: only there so that every rank has a batch; its labels are ignored."""


class Preparation(Dataset[Prepared]):
    """Turns a task into a batch: samples, their random changes, geometry. Runs in workers, too.

    What is random depends on ``seed``, the epoch and the index of the sample (its changes) or the number of
    the batch (its geometry), not on the process or on what was made before. Where labels are per point and
    the network can do so, it is asked for predictions only where there are labels.
    """

    def __init__(
        self, samples: Any, network: Any, transform: Transform | None, seed: int, stream: int
    ) -> None:
        self.samples, self.transform, self.seed, self.stream = samples, transform, seed, stream
        self.hierarchy = network.hierarchy
        self.queries = takes_queries(network)

    def __getitem__(self, task: Task) -> Prepared:
        key = (self.seed, self.stream, task.epoch)
        chosen = [self.samples[item] for item in task.items]
        if self.transform is not None:
            chosen = [
                self.transform(sample, generator(*key, SAMPLE, item if isinstance(item, int) else item.seed))
                for sample, item in zip(chosen, task.items, strict=True)
            ]
        batch = collate(chosen)
        labels, options = batch.labels, {}
        if self.queries and isinstance(chosen[0].label, Tensor):
            known = (labels >= 0).nonzero().squeeze(1)
            labels, options = labels[known], {"queries": batch.cloud[known]}
        levels = self.hierarchy(batch.cloud, generator=generator(*key, LEVELS, task.number), **options)
        labels = labels if task.counts else torch.full_like(labels, -1)
        return Prepared(batch.features, levels, labels, mix(*key, DROPOUT, task.number))


def takes_queries(network: Any) -> bool:
    """Whether a network can predict at other points than those of its input."""
    return "queries" in inspect.signature(network.hierarchy).parameters


class Shuffled:
    """All samples of a data set, in another order in each epoch."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed

    def __len__(self) -> int:
        return self.size

    def __call__(self, epoch: int) -> list[Item]:
        order: list[Item] = torch.randperm(self.size, generator=generator(self.seed, epoch, ORDER)).tolist()
        return order


class Planned:
    """Places in scenes, planned epoch after epoch so that all are covered evenly.

    A plan depends on those before it: for an epoch that is not the next, all before it are made again.
    """

    def __init__(self, make: Callable[[], CropSampler]) -> None:
        self.make, self.sampler = make, make()
        self.epoch, self.plan = -1, list[Item]()

    def __len__(self) -> int:
        return len(self.sampler)

    def __call__(self, epoch: int) -> list[Item]:
        if epoch < self.epoch:
            self.sampler, self.epoch = self.make(), -1
        while self.epoch < epoch:
            self.plan, self.epoch = list(self.sampler), self.epoch + 1
        return self.plan


class Fixed:
    """The same in every epoch."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def __call__(self, epoch: int) -> list[Item]:
        return self.items


class Loader:
    """Batches of an epoch, to be resumed at any batch.

    Batches are numbered over all processes together: of W ranks, rank r takes batches r, r + W, ..., so that
    W processes do what one does that accumulates the gradients of W batches. If the batches do not divide
    among the ranks, the first ones are used again at the end (in an evaluation, without labels).

    Args:
        preparation: makes the batches.
        order: what belongs to an epoch, in order: ``Shuffled``, ``Planned`` or ``Fixed``.
        batch_size: clouds per batch.
        training: a batch is another one in each epoch.
        drop_last: leaves out a smaller last batch.
        workers: processes that prepare batches; 0: this one.
        pin: batches in page-locked memory.
        keep: keeps the batches for the next time; for batches that are the same in each epoch.
    """

    def __init__(
        self,
        preparation: Preparation,
        order: Shuffled | Planned | Fixed,
        batch_size: int,
        training: bool = True,
        drop_last: bool = False,
        workers: int = 0,
        pin: bool = False,
        keep: bool = False,
    ) -> None:
        self.preparation, self.order, self.batch_size = preparation, order, batch_size
        self.training, self.drop_last, self.workers, self.pin = training, drop_last, workers, pin
        self.epoch, self.rank, self.ranks = 0, 0, 1
        self._kept: list[Prepared] | None = [] if keep else None
        self._start = self._position = 0
        self._pool: Any = None
        if training:
            self.sampler = self  # where Lightning looks for set_epoch

    @property
    def total(self) -> int:
        """Batches of an epoch, of all ranks together."""
        full, rest = divmod(len(self.order), self.batch_size)
        return full if self.drop_last or not rest else full + 1

    def __len__(self) -> int:
        return -(-self.total // self.ranks)

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
        order = self.order(epoch)
        size = self.batch_size
        every = [Task(epoch, i, tuple(order[i * size : (i + 1) * size])) for i in range(self.total)]
        # What is missing to as many batches for each rank is repeated; in an evaluation it must not count.
        again = every * self.ranks
        every += [replace(task, counts=self.training) for task in again[: -len(every) % self.ranks]]
        return every[self.rank :: self.ranks]

    def __iter__(self) -> Iterator[Prepared]:
        # Lightning sets the epoch only after it has asked for an iterator: look at it when the first batch is
        # wanted, not before.
        start, self._start = self._start, 0
        tasks = self.tasks(self.epoch if self.training else 0)[start:]
        self._position = start
        for batch in self._prepared(tasks):
            self._position += 1
            yield batch

    def close(self) -> None:
        """Ends the workers. Left to the garbage collector they would be waited for, five seconds each: it
        takes away the queue by which they are told to end before it tells them."""
        iterator = getattr(self._pool, "_iterator", None)
        if iterator is not None:
            iterator._shutdown_workers()
        self._pool = None

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
