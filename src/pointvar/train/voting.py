"""Probabilities summed over several looks: augmented passes over a cloud, overlapping spheres of a scene."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics.classification import MulticlassConfusionMatrix

from pointvar.cloud import PointCloud
from pointvar.data import Sample, cover
from pointvar.data.transforms import seeded
from pointvar.train.build import Data, transform_of
from pointvar.train.config import DataConfig
from pointvar.train.loader import LEVELS, SAMPLE, TEST, BatchIndex, Preparation, takes_queries
from pointvar.train.metrics import Metrics

TILE = 500_000
SPHERE = 150_000


def evaluate(
    model: nn.Module,
    data: Data,
    config: DataConfig,
    votes: int = 1,
    seed: int = 0,
    each: Callable[[Sample, Tensor, Tensor], None] | None = None,
) -> Metrics:
    """How well a network predicts the labels of the test data, or where there are none, of the validation.

    Args:
        model: a network of ``pointvar.models``; as it is, but in evaluation mode.
        data: the data.
        config: how clouds are prepared and augmented, and the radii of spheres.
        votes: passes whose probabilities are summed; with more than one, all are augmented.
        seed: of all that is random.
        each: called with every sample, its predicted class and the probability of that; of a scene ``[N]``.
    """
    confusion = MulticlassConfusionMatrix(len(data.classes), ignore_index=-1, validate_args=False)
    samples = data.validation if data.test is None else data.test
    if data.task == "classification":
        labels = torch.tensor([samples[index].label for index in range(len(samples))])
        confidence, predicted = class_probabilities(model, samples, config, votes, seed).max(1)
        confusion.update(predicted, labels)
        if each is not None:
            for index in range(len(samples)):
                each(samples[index], predicted[index], confidence[index])
    else:
        for index in range(len(samples)):
            scene = samples[index]
            predicted, confidence = predict_scene(model, scene, config, votes, seed)
            confusion.update(predicted, scene.label)
            if each is not None:
                each(scene, predicted, confidence)
    return Metrics.of(confusion.compute(), data.classes)


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
    with evaluating(model) as device:
        for number, items in enumerate(chunks):
            looks = [prepare[BatchIndex(vote, number, items)].to(device) for vote in range(votes)]
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
    if config.poisson is not None:
        raise ValueError("clouds of a segmentation keep all their points: data.poisson must be null")
    labels = torch.zeros(len(scene), dtype=torch.int64)
    confidence = torch.zeros(len(scene))
    transform = transform_of(config, "segmentation", augment=votes > 1)
    done = 0
    with evaluating(model) as device:
        for own, margin in tiles(scene.points, tile, config.context):
            part = replace(scene[torch.cat([own, margin])], label=-1)
            sums: Tensor | None = None
            for vote in range(votes):
                key = (seed, TEST, vote, done)
                crops = cover(
                    part, config.radius, config.context, seeded(*key, SAMPLE), wanted=len(own), limit=sphere
                )
                for number, crop in enumerate(crops):
                    look = transform(crop.sample, seeded(*key, SAMPLE, number))
                    probabilities = look_at(model, look, crop.inner, seeded(*key, LEVELS, number), device)
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


def look_at(
    model: Any, sample: Sample, inner: Tensor, generator: torch.Generator, device: torch.device
) -> Tensor:
    """Probabilities at the inner points of one sphere."""
    cloud, wanted, queries = PointCloud(sample.points), inner.nonzero().squeeze(1), takes_queries(model)
    options = {"queries": cloud[wanted]} if queries else {}
    levels = model.hierarchy(cloud, generator=generator, **options)
    result = _probabilities(model(sample.features.to(device), levels.to(device)))
    return result if queries else result[wanted]


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


@contextmanager
def evaluating(model: nn.Module) -> Iterator[torch.device]:
    """A network in evaluation mode, for a while; gives its device."""
    before = model.training
    model.eval()
    try:
        yield next(model.parameters()).device
    finally:
        model.train(before)
