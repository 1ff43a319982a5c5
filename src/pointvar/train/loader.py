"""Batches with their geometry made, the same for a seed, an epoch and an index, whoever makes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from pointvar.data import CropSampler, Sample, SphereCrops, Transform, collate
from pointvar.data.crops import Place
from pointvar.data.transforms import mixed, seeded
from pointvar.geometry import Hierarchy
from pointvar.train.build import Data, transform_of
from pointvar.train.config import Config, DataConfig

TRAIN, TEST, INIT, WEIGHTS, DROPOUT, ORDER, SAMPLE, LEVELS = range(8)
"""Names of streams of random numbers."""
generator = seeded
KEPT_POINTS = 500_000
"""Test sets of at most so many points keep their prepared batches from one evaluation to the next."""


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


@dataclass(frozen=True)
class WholeScene:
    """A scene to be evaluated as `evaluate` does: in spheres that cover it."""

    sample: Sample
    config: DataConfig
    seed: int

    @property
    def features(self) -> Tensor:
        return self.sample.features

    def to(self, device: torch.device | str, non_blocking: bool = False) -> WholeScene:
        return self


Item = int | Place
"""A sample of a data set, or a place in a scene."""


@dataclass(frozen=True)
class BatchIndex:
    """Which batch is to be prepared."""

    epoch: int
    number: int
    items: tuple[Item, ...]
    counts: bool = True
    """False: only there so that every rank has a batch; its labels are ignored."""


class Preparation(Dataset[Prepared]):
    """Batches by their `BatchIndex`: samples, their random changes, geometry. Runs in workers, too.

    What is random depends on ``seed``, the epoch and the index of the sample (its changes) or the number of
    the batch (its geometry), not on the process or on what was made before. Where labels are per point and
    the network can do so, it is asked for predictions only where there are labels. With ``keep``, batches
    that are the same in each epoch are made once.
    """

    def __init__(
        self, samples: Any, network: Any, transform: Transform, seed: int, stream: int, keep: bool = False
    ) -> None:
        self.samples, self.transform, self.seed, self.stream = samples, transform, seed, stream
        self.hierarchy = network.hierarchy
        self.queries = takes_queries(network)
        self.kept: dict[BatchIndex, Prepared] | None = {} if keep else None

    def __getitem__(self, index: BatchIndex) -> Prepared:
        if self.kept is None:
            return self._prepared(index)
        if index not in self.kept:
            self.kept[index] = self._prepared(index)
        return self.kept[index]

    def _prepared(self, index: BatchIndex) -> Prepared:
        key = (self.seed, self.stream, index.epoch)
        seeds = [item if isinstance(item, int) else item.seed for item in index.items]
        chosen = [
            self.transform(self.samples[item], seeded(*key, SAMPLE, seed))
            for item, seed in zip(index.items, seeds, strict=True)
        ]
        batch = collate(chosen)
        labels, options = batch.labels, {}
        if self.queries and isinstance(chosen[0].label, Tensor):
            known = (labels >= 0).nonzero().squeeze(1)
            labels, options = labels[known], {"queries": batch.cloud[known]}
        levels = self.hierarchy(batch.cloud, generator=seeded(*key, LEVELS, index.number), **options)
        labels = labels if index.counts else torch.full_like(labels, -1)
        return Prepared(batch.features, levels, labels, mixed(*key, DROPOUT, index.number))


class WholeScenes(Dataset[WholeScene]):
    """Scenes by their `BatchIndex`, one in each batch."""

    def __init__(self, scenes: Any, config: DataConfig, seed: int) -> None:
        self.scenes, self.config, self.seed = scenes, config, seed

    def __getitem__(self, index: BatchIndex) -> WholeScene:
        scene = self.scenes[index.items[0]]
        if not index.counts:
            scene = replace(scene, label=torch.full_like(scene.label, -1))
        return WholeScene(scene, self.config, self.seed)


def takes_queries(network: Any) -> bool:
    """Whether a network can predict at other points than those of its input."""
    return "queries" in inspect.signature(network.hierarchy).parameters


class Batches(Sampler[BatchIndex]):
    """The batches of an epoch, to be resumed at any of them.

    Batches are numbered over all processes together: of W ranks, rank r takes batches r, r + W, ..., so that
    W processes do what one does that accumulates the gradients of W batches. If the batches do not divide
    among the ranks, the first ones are used again at the end (in an evaluation, without labels).

    Args:
        order: gives the items of an epoch by its number.
        count: how many these are.
        batch_size: items of a batch.
        training: batches are others in each epoch.
        drop_last: leaves out a smaller last batch.
        rank, ranks: of this process among all.
        sampler: what ``order`` takes the items from, if that has a state.
    """

    def __init__(
        self,
        order: Callable[[int], Sequence[Item]],
        count: int,
        batch_size: int,
        training: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        ranks: int = 1,
        sampler: CropSampler | None = None,
    ) -> None:
        self.order, self.batch_size, self.training, self.sampler = order, batch_size, training, sampler
        self.rank, self.ranks = rank, ranks
        self.total = count // batch_size if drop_last else -(-count // batch_size)
        self.epoch, self.start, self.given = 0, 0, 0
        self._planned: tuple[int, list[BatchIndex]] | None = None

    def __len__(self) -> int:
        return -(-self.total // self.ranks)

    def __iter__(self) -> Iterator[BatchIndex]:
        return iter(self.plan()[self.rank :: self.ranks][self.start :])

    def plan(self) -> list[BatchIndex]:
        """The batches of the present epoch for all ranks."""
        if self._planned is None or self._planned[0] != self.epoch:
            items, size = self.order(self.epoch), self.batch_size
            slices = [tuple(items[n * size : (n + 1) * size]) for n in range(self.total)]
            every = [BatchIndex(self.epoch, number, chosen) for number, chosen in enumerate(slices)]
            # Batches are repeated until each rank has as many; in an evaluation those must not count.
            again = (every * self.ranks)[: -len(every) % self.ranks]
            every += [replace(index, counts=self.training) for index in again]
            self._planned = self.epoch, every
        return self._planned[1]

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this before each epoch; evaluations are always the same."""
        self.epoch = epoch if self.training else 0

    def state_dict(self) -> dict[str, Any]:
        """What is needed to go on after the batches given so far (a data loader fetches ahead of them)."""
        ended = self.given >= len(self)
        state: dict[str, Any] = {"position": 0 if ended else self.given}  # the epoch is known to Lightning
        if self.sampler is not None:
            state["sampler"] = self.sampler.state_dict(None if ended else 0)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next iteration start where another one was."""
        self.start, self._planned = state["position"], None
        if self.sampler is not None:
            self.sampler.load_state_dict(state["sampler"])


class Loader(DataLoader[Any]):
    """Torch's data loader of prepared batches, to be resumed at any batch."""

    def __init__(self, preparation: Dataset[Any], batches: Batches, workers: int = 0) -> None:
        super().__init__(
            preparation,
            batch_size=None,  # an item is a batch
            sampler=batches,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # of the workers' seeds: the caller's random state is left alone
        )
        self.preparation, self.batches = preparation, batches

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        # Lightning asks for an iterator before it sets the epoch, and before an initialisation takes another
        # one. As a generator, this looks at the epoch only when the first batch is wanted.
        iterator = super().__iter__()
        self.batches.given, self.batches.start = self.batches.start, 0
        for batch in iterator:
            self.batches.given += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return self.batches.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.batches.load_state_dict(state)


def loaders(
    config: Config, data: Data, network: nn.Module, rank: int = 0, ranks: int = 1
) -> tuple[Loader, Loader]:
    """The training batches of a run and those evaluated between epochs, for one of its processes."""
    settings, seed = config.data, config.seed
    change, only_prepare = (transform_of(settings, data.task, augment=augment) for augment in (True, False))
    sampler, keep, test = None, False, data.evaluated
    if data.task == "segmentation":
        count = len(data.train) if settings.crops is None else settings.crops
        sampler = CropSampler(data.train, settings.radius, count, seeded(seed, TRAIN, ORDER))
        samples: Any = SphereCrops(data.train, settings.radius, settings.context)
        evaluated: Dataset[Any] = WholeScenes(test, settings, seed)
        size = 1
    else:
        count, samples, size = len(data.train), data.train, max(settings.batch_size, 8)
        keep = settings.cache and len(test) * len(test[0]) <= KEPT_POINTS
        evaluated = Preparation(test, network, only_prepare, seed, TEST, keep)

    def order(epoch: int) -> list[Item]:
        if sampler is not None:
            return list(sampler)
        return torch.randperm(count, generator=seeded(seed, epoch, ORDER)).tolist()

    return (
        Loader(
            Preparation(samples, network, change, seed, TRAIN),
            Batches(order, count, settings.batch_size, True, settings.drop_last, rank, ranks, sampler),
            settings.workers,
        ),
        Loader(
            evaluated,
            Batches(lambda _: range(len(test)), len(test), size, training=False, rank=rank, ranks=ranks),
            0 if keep else settings.workers,
        ),
    )
