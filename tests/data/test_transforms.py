"""Each transform does what it says, turns normals along, and repeats with its generator."""

import math
from collections.abc import Callable

import pytest
import torch
from torch.utils.data import DataLoader

from pointvar.data import (
    Compose,
    Jitter,
    Mirror,
    NormalizeBox,
    NormalizeSphere,
    PoissonDisk,
    Rotate,
    Sample,
    Scale,
    Shapes,
    Subset,
    Transform,
    Transformed,
    collate,
)

NORMALS = [slice(1, 4)]


def ellipsoid(count: int = 300, dim: int = 3) -> Sample:
    """Points on an ellipsoid away from the origin; features: a constant, then the unit normals."""
    generator = torch.Generator().manual_seed(0)
    unit = torch.nn.functional.normalize(torch.randn(count, dim, generator=generator), dim=1)
    axes = torch.tensor([1.0, 2.0, 3.0])[:dim]
    normals = torch.nn.functional.normalize(unit / axes, dim=1)
    return Sample(unit * axes + 5, torch.cat([torch.ones(count, 1), normals], 1), torch.arange(count), "e")


TRANSFORMS: dict[str, Callable[[], Transform]] = {
    "box": NormalizeBox,
    "sphere": NormalizeSphere,
    "scale": lambda: Scale(0.5, 1.5, NORMALS),
    "rotate": lambda: Rotate(vectors=NORMALS),
    "mirror": lambda: Mirror((0, 1), NORMALS),
    "jitter": lambda: Jitter(0.1),
    "subset": lambda: Subset(100),
    "poisson": lambda: PoissonDisk(0.5),
    "compose": lambda: Compose(Subset(200), Rotate(vectors=NORMALS), Jitter()),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_repeats_with_its_generator_and_leaves_its_input(name: str) -> None:
    sample, transform = ellipsoid(), TRANSFORMS[name]()
    before = sample.points.clone(), sample.features.clone()
    seeds = [transform(sample, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2, 3, 4)]
    assert torch.equal(seeds[0].points, seeds[1].points)
    assert torch.equal(seeds[0].features, seeds[1].features)
    differ = any(not torch.equal(seeds[0].points, other.points) for other in seeds[2:])
    assert differ == (name not in ("box", "sphere"))
    assert torch.equal(sample.points, before[0])
    assert torch.equal(sample.features, before[1])
    assert seeds[0].name == "e"


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_box(dim: int, generator: torch.Generator) -> None:
    points = NormalizeBox()(ellipsoid(dim=dim), generator).points
    assert (points.amax(0) - points.amin(0)).amax() == pytest.approx(2)
    assert (points.amax(0) + points.amin(0)).abs().amax() < 1e-5


def test_sphere(generator: torch.Generator) -> None:
    points = NormalizeSphere()(ellipsoid(), generator).points
    assert points.norm(dim=1).amax() == pytest.approx(1)
    assert points.mean(0).abs().amax() < 1e-6


@pytest.mark.parametrize("transform", [NormalizeBox(), NormalizeSphere()])
def test_normalising_one_place_or_nothing(transform: Transform, generator: torch.Generator) -> None:
    place = Sample(torch.full((3, 3), 7.0), torch.ones(3, 1), 0)
    assert torch.equal(transform(place, generator).points, torch.zeros(3, 3))
    with pytest.raises(ValueError, match="no points"):
        transform(place[:0], generator)


def test_scale_is_within_its_limits(generator: torch.Generator) -> None:
    sample = ellipsoid(4)
    factors = torch.stack([Scale()(sample, generator).points[0] / sample.points[0] for _ in range(500)])
    assert factors.min() >= 0.9 - 1e-6
    assert factors.max() <= 1.1 + 1e-6
    assert (factors.max(0).values > 1.09).all()
    assert (factors.min(0).values < 0.91).all()
    assert factors.T.corrcoef().triu(1).abs().max() < 0.18  # independent axes: four standard deviations


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rotation_keeps_the_up_axis_and_distances(axis: int, generator: torch.Generator) -> None:
    sample = ellipsoid()
    turned = Rotate(axis, vectors=NORMALS)(sample, generator)
    assert torch.allclose(turned.points[:, axis], sample.points[:, axis])
    assert torch.allclose(
        torch.cdist(turned.points, turned.points), torch.cdist(sample.points, sample.points), atol=1e-2
    )
    # The same rotation for normals: angles between normals and points stay.
    before = (sample.points * sample.features[:, 1:]).sum(1)
    assert torch.allclose((turned.points * turned.features[:, 1:]).sum(1), before, atol=1e-4)
    assert torch.equal(turned.features[:, 0], sample.features[:, 0])


def test_rotation_is_right_handed_and_uniform(generator: torch.Generator) -> None:
    one = Sample(torch.tensor([[1.0, 0, 0]]), torch.ones(1, 1), 0)
    points = torch.cat([Rotate(2)(one, generator).points for _ in range(2000)])
    angles = torch.atan2(points[:, 1], points[:, 0])
    assert torch.histc(angles, 8, -math.pi, math.pi).sub(250).abs().max() < 60  # four standard deviations
    small = torch.cat([Rotate(2, angle=0.1)(one, generator).points for _ in range(100)])
    assert torch.atan2(small[:, 1], small[:, 0]).abs().max() <= 0.1 + 1e-6


@pytest.mark.parametrize(
    "transform", [Scale(0.3, 3, NORMALS), Mirror((0, 1), NORMALS), Rotate(vectors=NORMALS)]
)
def test_normals_stay_normal_to_the_surface(transform: Transform, generator: torch.Generator) -> None:
    sample = ellipsoid()
    unit = torch.nn.functional.normalize((sample.points - 5) / torch.tensor([1.0, 2, 3]), dim=1)
    # A short step in the surface from each point, made at right angles to the normal.
    step = torch.linalg.cross(sample.features[:, 1:], unit.roll(1, 0))
    moved = transform(
        Sample(sample.points + 1e-2 * step, sample.features, 0), torch.Generator().manual_seed(5)
    )
    start = transform(sample, torch.Generator().manual_seed(5))
    tangent = torch.nn.functional.normalize(moved.points - start.points, dim=1)
    assert (tangent * start.features[:, 1:]).sum(1).abs().max() < 1e-3
    assert torch.allclose(start.features[:, 1:].norm(dim=1), torch.ones(300), atol=1e-5)


def test_mirror_and_jitter(generator: torch.Generator) -> None:
    sample = ellipsoid()
    signs = torch.stack([Mirror((0,))(sample, generator).points[0] / sample.points[0] for _ in range(400)])
    assert torch.equal(signs[:, 1:].round(), torch.ones(400, 2))
    assert abs(int((signs[:, 0] < 0).sum()) - 200) < 40  # four standard deviations
    noise = Jitter(0.1, clip=0.15)(sample, generator).points - sample.points
    assert noise.abs().max() == pytest.approx(0.15, abs=1e-5)
    assert Jitter(0.1)(sample, generator).points.sub(sample.points).std() == pytest.approx(0.1, rel=0.1)


def test_fewer_points(generator: torch.Generator) -> None:
    sample = ellipsoid()
    chosen = Subset(100)(sample, generator)
    assert len(set(chosen.label.tolist())) == 100
    assert torch.equal(chosen.points, sample.points[chosen.label])
    assert sorted(Subset(1000)(sample, generator).label.tolist()) == list(range(300))
    thin = PoissonDisk(0.6)(sample, generator)
    gaps = torch.cdist(thin.points, thin.points).fill_diagonal_(9)
    assert gaps.min() >= 0.6
    assert torch.cdist(sample.points, thin.points).amin(1).max() < 0.6 + 1e-6


def test_wrong_arguments(generator: torch.Generator) -> None:
    with pytest.raises(ValueError, match="0 < low <= high"):
        Scale(1.1, 0.9)
    with pytest.raises(ValueError, match="2D or 3D points, got 1D"):
        Rotate()(ellipsoid(dim=1), generator)
    with pytest.raises(ValueError, match="name 2 columns, points have 3"):
        Rotate(vectors=[slice(0, 2)])(ellipsoid(), generator)


def test_a_transformed_data_set_repeats_in_any_process_and_epoch() -> None:
    data = Transformed(Shapes(8, num_points=30), Compose(Rotate(), Subset(20)), seed=1)
    assert (data.task, len(data.classes), data.num_features, len(data)) == ("classification", 25, 1, 8)
    workers = DataLoader(data, batch_size=2, collate_fn=collate, num_workers=2, persistent_workers=True)
    epochs = []
    for epoch in (0, 1, 0):
        data.set_epoch(epoch)
        seen = torch.cat([batch.cloud.points for batch in workers])
        assert torch.equal(seen, torch.cat([data[i].points for i in range(8)]))
        epochs.append(seen)
    assert torch.equal(epochs[0], epochs[2])
    assert not torch.equal(epochs[0], epochs[1])
    rotations = {tuple(Transformed(Shapes(1), Rotate(), s)[0].points[0].tolist()) for s in range(5)}
    assert len(rotations) == 5
