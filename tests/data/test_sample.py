"""Samples check what they hold, and batches pack it."""

import pytest
import torch

from pointvar.data import Batch, Sample, collate


def make(count: int, label: int | torch.Tensor = 0, channels: int = 2, name: str = "a") -> Sample:
    generator = torch.Generator().manual_seed(count)
    return Sample(
        torch.rand(count, 3, generator=generator),
        torch.rand(count, channels, generator=generator),
        label,
        name,
    )


def test_classes_are_collated_per_cloud() -> None:
    samples = [make(3, 5, name="x"), make(0, 2, name="empty"), make(4, 1, name="y")]
    batch = collate(samples)
    assert batch.cloud.lengths.tolist() == [3, 0, 4]
    assert batch.labels.tolist() == [5, 2, 1]
    assert batch.labels.dtype == torch.int64
    assert batch.names == ["x", "empty", "y"]
    assert len(batch) == 3
    assert torch.equal(batch.features, torch.cat([s.features for s in samples]))
    assert torch.equal(batch.cloud.points, torch.cat([s.points for s in samples]))


def test_labels_per_point_are_collated_per_point() -> None:
    batch = collate([make(3, torch.tensor([0, -1, 2])), make(2, torch.tensor([4, 5]))])
    assert batch.labels.tolist() == [0, -1, 2, 4, 5]


def test_a_batch_moves_and_keeps_its_integers() -> None:
    batch = collate([make(3, 5), make(4, 1)]).to(torch.float64)
    assert isinstance(batch, Batch)
    assert batch.cloud.dtype == batch.features.dtype == torch.float64
    assert batch.labels.dtype == torch.int64
    assert batch.to("meta").labels.device.type == "meta"


def test_choosing_points_keeps_what_belongs_together() -> None:
    sample = make(5, torch.arange(5))
    chosen = sample[torch.tensor([4, 1])]
    assert torch.equal(chosen.points, sample.points[[4, 1]])
    assert torch.equal(chosen.features, sample.features[[4, 1]])
    assert torch.equal(chosen.label, torch.tensor([4, 1]))
    assert make(5, 3)[:2].label == 3


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"points": torch.rand(4, 3, dtype=torch.float64)}, ValueError, "points must be float32"),
        ({"points": torch.rand(4)}, ValueError, "points must be float32"),
        ({"features": torch.rand(3, 1)}, ValueError, "4 points, but 3 rows"),
        ({"features": torch.rand(4)}, ValueError, "features must be float32"),
        ({"label": torch.zeros(3, dtype=torch.int64)}, ValueError, r"int64 \[4\]"),
        ({"label": torch.zeros(4)}, ValueError, r"int64 \[4\]"),
        ({"label": 1.0}, TypeError, "label must be an int"),
        ({"label": True}, TypeError, "label must be an int"),
    ],
)
def test_a_sample_says_what_is_wrong_with_it(change: dict, error: type, message: str) -> None:
    good = {"points": torch.rand(4, 3), "features": torch.ones(4, 1), "label": 0, "name": "chair_7"}
    with pytest.raises(error, match=f"chair_7.*{message}"):
        Sample(**(good | change))


def test_samples_that_do_not_fit_together() -> None:
    with pytest.raises(ValueError, match="at least one"):
        collate([])
    with pytest.raises(ValueError, match=r"as many features.*\[1, 2\]"):
        collate([make(2, channels=1), make(2, channels=2)])
    with pytest.raises(ValueError, match="not both"):
        collate([make(2, 1), make(2, torch.tensor([0, 1]))])
