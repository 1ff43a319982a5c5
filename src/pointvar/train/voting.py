"""Probabilities summed over several looks: augmented passes over a cloud, overlapping spheres of a scene."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pointvar.cloud import PointCloud
from pointvar.data import Crop, Sample, crop_sphere
from pointvar.data.crops import Potentials
from pointvar.data.transforms import Compose
from pointvar.train.config import DataConfig
from pointvar.train.loader import LEVELS, SAMPLE, TEST, Preparation, Task, generator, takes_queries
from pointvar.train.metrics import Metrics, confusion
from pointvar.train.sources import Data, augmentation, preparation, transform_of

TILE = 500_000
SPHERE = 150_000


def evaluate(model: nn.Module, data: Data, config: DataConfig, votes: int = 1, seed: int = 0) -> Metrics:
    """How well a network predicts the labels of the test data.

    Args:
        model: a network of ``pointvar.models``; as it is, but in evaluation mode.
        data: the data.
        config: how clouds are prepared and augmented, and the radii of spheres.
        votes: passes whose probabilities are summed; with more than one, all are augmented.
        seed: of all that is random.
    """
    counts = torch.zeros(len(data.classes), len(data.classes), dtype=torch.int64)
    if data.task == "classification":
        labels = torch.tensor([data.test[index].label for index in range(len(data.test))])
        predicted = class_probabilities(model, data.test, config, votes, seed).argmax(1)
        counts += confusion(predicted, labels, len(counts))
    else:
        for index in range(len(data.test)):
            scene = data.test[index]
            predicted, _ = predict_scene(model, scene, config, votes, seed)
            counts += confusion(predicted, scene.label, len(counts))
    return Metrics.of(counts, data.classes)


@torch.no_grad()
def class_probabilities(
    model: nn.Module, samples: Any, config: DataConfig, votes: int = 1, seed: int = 0
) -> Tensor:
    """Probabilities of the classes of each sample, averaged over the votes, ``[samples, classes]``."""
    transform = transform_of(config, "classification", augment=votes > 1)
    prepare = Preparation(samples, model, transform, seed, TEST)
    size = max(config.batch_size, 8)
    chunks = [tuple(range(i, min(i + size, len(samples)))) for i in range(0, len(samples), size)]
    total: list[Tensor] = []
    with _Evaluating(model) as device:
        for number, items in enumerate(chunks):
            looks = [prepare[Task(vote, number, items)].to(device) for vote in range(votes)]
            shares = [_probabilities(model(look.features, look.levels)) for look in looks]
            total.append(torch.stack(shares).mean(0))
    return torch.cat(total)


@torch.no_grad()
def predict_scene(
    model: nn.Module,
    scene: Sample,
    config: DataConfig,
    votes: int = 1,
    seed: int = 0,
    tile: int = TILE,
    sphere: int = SPHERE,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """The class of each point of a scene of any size, and the probability given to it.

    Probabilities are summed over spheres that overlap until each point was in the inner part of one, in each
    of ``votes`` passes. The scene is worked through in tiles, so that memory holds the scene, what is summed
    for one tile, and a network's activations for one sphere.

    Args:
        tile: largest number of points of a tile.
        sphere: largest number of points that a network gets; where the scene is denser, spheres are smaller.
        progress: called with the number of points done and of all.

    Shapes (N points):
        - result: two of ``[N]``, int64 and float32
    """
    labels = torch.zeros(len(scene), dtype=torch.int64)
    confidence = torch.zeros(len(scene))
    always, changes = preparation(config, "segmentation"), augmentation(config) if votes > 1 else []
    if always:
        raise ValueError("clouds of a segmentation keep all their points: data.poisson must be null")
    transform = Compose(*changes)
    queries, done = takes_queries(model), 0
    with _Evaluating(model) as device:
        for own, margin in tiles(scene.points, tile, config.context):
            part = scene[torch.cat([own, margin])]
            sums: Tensor | None = None
            for vote in range(votes):
                key = (seed, TEST, vote, done)
                for number, crop in enumerate(
                    spheres(part, len(own), config.radius, config.context, sphere, generator(*key, SAMPLE))
                ):
                    look = transform(crop.sample, generator(*key, SAMPLE, number))
                    probabilities = _look(
                        model, look, crop.inner, queries, generator(*key, LEVELS, number), device
                    )
                    if sums is None:
                        sums = torch.zeros(len(own), probabilities.shape[1])
                    index = crop.index[crop.inner]
                    mine = index < len(own)
                    sums.index_add_(0, index[mine], probabilities[mine])
            assert sums is not None
            share, labels[own] = sums.max(1)
            confidence[own] = share / sums.sum(1)
            done += len(own)
            if progress is not None:
                progress(done, len(scene))
    return labels, confidence


def _look(
    model: nn.Module,
    sample: Sample,
    inner: Tensor,
    queries: bool,
    random: torch.Generator,
    device: torch.device,
) -> Tensor:
    """Probabilities at the inner points of one sphere."""
    cloud = PointCloud(sample.points)
    wanted = inner.nonzero().squeeze(1)
    options = {"queries": cloud[wanted]} if queries else {}
    levels = model.hierarchy(cloud, generator=random, **options)  # type: ignore[operator]
    scores = model(sample.features.to(device), levels if device.type == "cpu" else levels.to(device))
    result = _probabilities(scores)
    return result if queries else result[wanted]


def spheres(
    scene: Sample, wanted: int, inner: float, outer: float, limit: int, random: torch.Generator
) -> Iterator[Crop]:
    """Crops until each of the first ``wanted`` points of a scene was in the inner part of one."""
    scene = replace(scene, label=-1)
    potentials = Potentials(scene.points, inner, random)
    waiting = torch.ones(wanted, dtype=torch.bool)
    while bool(waiting.any()):
        place = int(potentials.values[:wanted].where(waiting, torch.inf).argmin())
        centre, factor = scene.points[place], 1.0
        crop = crop_sphere(scene, centre, inner, outer)
        while len(crop.index) > limit and factor > 0.01:
            factor *= 0.8
            crop = crop_sphere(scene, centre, factor * inner, factor * outer)
        reached = crop.index[crop.inner]
        waiting[reached[reached < wanted]] = False
        potentials.visit(centre)
        yield crop


def covering(scene: Sample, radius: float, random: torch.Generator) -> list[tuple[float, ...]]:
    """Centres of spheres that cover a scene."""
    potentials = Potentials(scene.points, radius, random)
    waiting = torch.ones(len(scene), dtype=torch.bool)
    centres = []
    while bool(waiting.any()):
        centre = scene.points[int(potentials.values.where(waiting, torch.inf).argmin())]
        waiting &= (scene.points - centre).square().sum(1) >= radius**2
        potentials.visit(centre)
        centres.append(tuple(centre.tolist()))
    return centres


def tiles(points: Tensor, limit: int, margin: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Points in boxes of at most ``limit`` of them, and the others that are within a margin of each box.

    Boxes are halved along their longest side until they are small enough.
    """
    waiting = [torch.arange(len(points))]
    while waiting:
        own = waiting.pop()
        inside = points[own]
        low, high = inside.amin(0), inside.amax(0)
        if len(own) > limit:
            axis = int((high - low).argmax())
            order = inside[:, axis].argsort(stable=True)
            waiting += [own[order[len(own) // 2 :]], own[order[: len(own) // 2]]]
            continue
        near = ((points >= low - margin) & (points <= high + margin)).all(1)
        near[own] = False
        yield own, near.nonzero().squeeze(1)


def _probabilities(scores: Tensor) -> Tensor:
    return scores.float().softmax(1).cpu()


class _Evaluating:
    """A network in evaluation mode, for a while; gives its device."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.before = model, model.training

    def __enter__(self) -> torch.device:
        self.model.eval()
        return next(self.model.parameters()).device

    def __exit__(self, *_: object) -> None:
        self.model.train(self.before)
