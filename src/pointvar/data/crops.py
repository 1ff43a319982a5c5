"""Large scenes cut into spheres: what is inside is predicted, what is around gives context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor
from torch.utils.data import Dataset, Sampler

from pointvar.cloud import PointCloud
from pointvar.data.base import PointData
from pointvar.data.sample import Sample
from pointvar.data.transforms import Transform, seeded
from pointvar.geometry import poisson_disk

IGNORED = -1


@dataclass(frozen=True)
class Crop:
    """A sphere cut out of a scene.

    Shapes:
        - sample: n points, relative to the centre; labels outside the inner sphere are the ignored one
        - index: ``[n]``, the points' places in the scene
        - inner: ``[n]``, true for the points to be predicted
        - centre: ``[D]``, in the scene
    """

    sample: Sample
    index: Tensor
    inner: Tensor
    centre: Tensor


def crop_sphere(
    scene: Sample, centre: Tensor | Sequence[float], inner: float, outer: float, ignore_index: int = IGNORED
) -> Crop:
    """The points of a scene within ``outer`` of the centre; those within ``inner`` are to be predicted."""
    _check_radii(inner, outer)
    middle = torch.as_tensor(centre, dtype=scene.points.dtype)
    offsets = scene.points - middle
    distance = offsets.norm(dim=1)
    index = (distance < outer).nonzero().squeeze(1)
    inside = distance[index] < inner
    part = replace(scene[index], points=offsets[index])
    if isinstance(part.label, Tensor):
        part = replace(part, label=part.label.where(inside, ignore_index))
    return Crop(part, index, inside, middle)


def cover(
    scene: Sample,
    inner: float,
    outer: float,
    generator: Generator,
    ignore_index: int = IGNORED,
    wanted: int | None = None,
    limit: int | None = None,
) -> Iterator[Crop]:
    """Crops of a scene until every point has been in an inner sphere; some are in several.

    Each is centred at the point that was least visited among those that were not yet inside any.

    Args:
        wanted: only the first so many points need to be covered; default all.
        limit: largest number of points of a crop: where the scene is denser, spheres are smaller.
    """
    _check_radii(inner, outer)
    potentials = Potentials(scene.points, inner, generator)
    waiting = torch.arange(len(scene)) < (len(scene) if wanted is None else wanted)
    while bool(waiting.any()):
        centre, factor = scene.points[int(potentials.values.where(waiting, torch.inf).argmin())], 1.0
        crop = crop_sphere(scene, centre, inner, outer, ignore_index)
        while limit is not None and len(crop.index) > limit and factor > 0.01:
            factor *= 0.8
            crop = crop_sphere(scene, centre, factor * inner, factor * outer, ignore_index)
        waiting[crop.index[crop.inner]] = False
        potentials.visit(centre)
        yield crop


class Potentials:
    r"""How much each point was visited; a little noise from the generator at the start breaks ties.

    A visit at c adds :math:`(1 - |x - c|^2 / r^2)^2` to the points x nearer than r.
    """

    def __init__(self, points: Tensor, radius: float, generator: Generator) -> None:
        self.points, self.radius = points, radius
        self.values = 1e-3 * torch.rand(points.shape[0], generator=generator)

    def visit(self, centre: Tensor) -> None:
        squared = (self.points - centre).square().sum(1) / self.radius**2
        self.values += (1 - squared).clamp_min(0).square()


class Place(NamedTuple):
    """Where to crop: the index of a scene, a centre in it, and a seed for the transform of the crop."""

    scene: int
    centre: tuple[float, ...]
    seed: int


class SphereCrops(Dataset[Sample]):
    """Crops of the scenes of a data set, indexed by `Place`: the data set to train on, with a `CropSampler`.

    Args:
        data: a segmentation data set.
        inner: radius in which labels count.
        outer: radius of the context, at least ``inner``; labels there are ``ignore_index``.
        transform: applied to each crop, whose centre is the origin.
    """

    def __init__(
        self,
        data: PointData,
        inner: float,
        outer: float,
        transform: Transform | None = None,
        ignore_index: int = IGNORED,
    ) -> None:
        _check_radii(inner, outer)
        if data.task != "segmentation":
            raise ValueError(f"crops need a label per point, this data set is for {data.task}")
        self.data, self.inner, self.outer = data, inner, outer
        self.transform, self.ignore_index = transform, ignore_index
        self.task, self.classes, self.num_features = data.task, data.classes, data.num_features

    def __getitem__(self, place: Place) -> Sample:
        scene = self.data[place.scene]
        sample = crop_sphere(scene, place.centre, self.inner, self.outer, self.ignore_index).sample
        if self.transform is None:
            return sample
        return self.transform(sample, seeded(place.seed))


class CropSampler(Sampler[Place]):
    """Chooses where to crop, so that all scenes are covered evenly: always at the least-visited place of all.

    It works in the main process, whatever the number of workers, and plans each epoch at its beginning.
    Candidates are a Poisson disk subset of each scene, kept in memory.

    Args:
        data: the scenes; each is read once.
        radius: of a visit, usually the inner radius.
        length: crops per epoch.
        generator: of all random choices.
        spacing: distance between candidates; default a quarter of the radius.
    """

    def __init__(
        self, data: PointData, radius: float, length: int, generator: Generator, spacing: float | None = None
    ) -> None:
        if length < 1 or not len(data):
            raise ValueError(f"a sampler needs scenes and a positive length, got {len(data)} and {length}")
        self.length, self.generator = length, generator
        self.potentials = []
        for index in range(len(data)):
            points = data[index].points
            keep = poisson_disk(PointCloud(points), spacing or radius / 4, generator=generator)
            self.potentials.append(Potentials(points[keep], radius, generator))
        self._plan: list[Place] = []
        self._done = 0  # of the plan, before this process

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Place]:
        if self._done >= len(self._plan):
            self._plan, self._done = self._make_plan(), 0
        start, self._done = self._done, len(self._plan)
        yield from self._plan[start:]

    def _make_plan(self) -> list[Place]:
        least = torch.stack([potential.values.amin() for potential in self.potentials])
        places = []
        seeds = torch.randint(2**31, (self.length,), generator=self.generator)
        for seed in seeds.tolist():
            scene = int(least.argmin())
            potential = self.potentials[scene]
            centre = potential.points[int(potential.values.argmin())]
            potential.visit(centre)
            least[scene] = potential.values.amin()
            places.append(Place(scene, tuple(centre.tolist()), seed))
        return places

    def state_dict(self, done: int | None = None) -> dict[str, Any]:
        """What is needed to go on exactly from here, in tensors and numbers alone.

        Args:
            done: how many crops of the present epoch have been used; default all. (The sampler cannot know
                it: data loaders fetch ahead.)
        """
        return {
            "plan": [(place.scene, list(place.centre), place.seed) for place in self._plan],
            "done": len(self._plan) if done is None else done,
            "potentials": [potential.values.clone() for potential in self.potentials],
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state: the rest of its epoch comes first."""
        sizes = [len(values) for values in state["potentials"]]
        if sizes != [len(potential.values) for potential in self.potentials]:
            raise ValueError("this state was saved for other scenes, another radius or another generator")
        self._plan = [Place(scene, tuple(centre), seed) for scene, centre, seed in state["plan"]]
        self._done = state["done"]
        for potential, values in zip(self.potentials, state["potentials"], strict=True):
            potential.values = values.clone()
        self.generator.set_state(state["generator"])


def _check_radii(inner: float, outer: float) -> None:
    if not 0 < inner <= outer:
        raise ValueError(f"radii of a crop need 0 < inner <= outer, got {inner} and {outer}")
