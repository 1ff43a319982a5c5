"""Accuracy and intersection over union against sets of indices."""

import math

import pytest
import torch
from torchmetrics.functional.classification import multiclass_confusion_matrix

from pointvar.train import Metrics


def confusion(predicted: torch.Tensor, labels: torch.Tensor, classes: int) -> torch.Tensor:
    return multiclass_confusion_matrix(predicted, labels, classes, ignore_index=-1)


def test_matches_sets(generator: torch.Generator) -> None:
    labels = torch.randint(-1, 4, (500,), generator=generator)
    predicted = torch.randint(0, 4, (500,), generator=generator).where(
        torch.arange(500) % 3 > 0, labels.clamp(min=0)
    )
    metrics = Metrics.of(confusion(predicted, labels, 5), list("abcde"))
    known = {i for i in range(500) if labels[i] >= 0}
    right = {i for i in known if labels[i] == predicted[i]}
    assert metrics.count == len(known)
    assert metrics.accuracy == pytest.approx(len(right) / len(known))
    shares, ious = [], []
    for c, name in enumerate("abcd"):
        is_c, said_c = {i for i in known if labels[i] == c}, {i for i in known if predicted[i] == c}
        shares.append(len(is_c & said_c) / len(is_c))
        ious.append(len(is_c & said_c) / len(is_c | said_c))
        assert metrics.iou[name] == pytest.approx(ious[-1])
        assert metrics.precision[name] == pytest.approx(len(is_c & said_c) / len(said_c))
        assert metrics.recall[name] == pytest.approx(shares[-1])
        assert metrics.labels[name] == len(is_c)
        for d, other in enumerate("abcd"):
            assert metrics.confusion[name].get(other, 0) == sum(int(predicted[i]) == d for i in is_c)
    assert (metrics.iou["e"], metrics.precision["e"], metrics.recall["e"]) == (None, None, None)
    assert (metrics.labels["e"], metrics.confusion["e"]) == (0, {})
    assert metrics.mean_accuracy == pytest.approx(sum(shares) / 4)
    assert metrics.mean_iou == pytest.approx(sum(ious) / 4)


def test_nothing_to_compare() -> None:
    metrics = Metrics.of(confusion(torch.tensor([0]), torch.tensor([-1]), 2), ["a", "b"])
    assert math.isnan(metrics.accuracy)
    assert metrics.count == 0


def test_means_are_over_the_classes_of_the_labels_whatever_is_predicted() -> None:
    metrics = Metrics.of(confusion(torch.tensor([1, 0]), torch.tensor([0, 0]), 3), ["a", "b", "c"])
    assert metrics.iou == {"a": 0.5, "b": None, "c": None}
    assert metrics.mean_iou == metrics.mean_accuracy == 0.5
    assert metrics.classes == 1
    # As a run counts that has diverged: over the same classes.
    other = Metrics.of(confusion(torch.tensor([0, 0]), torch.tensor([0, 0]), 3), ["a", "b", "c"])
    assert other.classes == 1


def test_as_text() -> None:
    text = str(Metrics.of(torch.tensor([[1, 1, 0], [0, 0, 0], [0, 0, 0]]), ["floor", "a", "wall"]))
    assert text.splitlines() == [
        "accuracy: 0.5000",
        "mean accuracy: 0.5000",
        "mean IoU: 0.5000 over 1 of 3 classes",
        "            IoU  precision  recall  labels",
        "  floor  0.5000     1.0000  0.5000  2",
        "  a           -     0.0000       -  0",
        "  wall        -          -       -  0",
    ]
    assert str(Metrics.of(torch.zeros(0, 0), [])).splitlines()[0] == "accuracy: nan"


def test_large_counts_are_not_rounded() -> None:
    metrics = Metrics.of(torch.tensor([[2**26 - 1, 1], [0, 0]]), ["a", "b"])
    assert metrics.iou["a"] == metrics.mean_accuracy == 1 - 2**-26


def test_a_name_for_each_class() -> None:
    with pytest.raises(ValueError, match="zip"):
        Metrics.of(torch.ones(2, 2), ["a"])
