"""Packed batches of point clouds: the one container that every other room takes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor

from pointvar import trees

T = TypeVar("T")


class Keeper(ABC):
    """Keeps what was computed from points; anew when they were changed in place."""

    _cache: dict[Any, tuple[Any, Any]]
    _traced = False
    """Whether it was made for a graph that is being exported, and lasts no longer than that."""

    @property
    @abstractmethod
    def needs_gradient(self) -> bool:
        """Whether what follows from the points carries gradients, and so must not be kept."""

    @abstractmethod
    def _versions(self) -> Any:
        """Another value whenever points were changed in place."""

    def kept(self, key: Any, make: Callable[[], T]) -> T:
        """Computes ``make()`` once per key. Callers keep nothing that carries gradients.

        What is made in inference mode is not kept, for it could not be used in training, nor what a
        compiled graph makes.
        """
        compiling = torch.compiler.is_compiling() and not self._traced  # there, versions cannot be seen
        version = None if compiling else self._versions()
        if key in self._cache and (compiling or self._cache[key][0] == version):
            kept: T = self._cache[key][1]
            return kept
        value = make()
        if not compiling and not torch.is_inference_mode_enabled():
            self._cache[key] = (version, value)
        return value

    def keep(self, values: dict[Any, Any]) -> None:
        """Takes what ``kept`` would compute for these keys."""
        version = self._versions()
        self._cache.update((key, (version, value)) for key, value in values.items())

    def carried(self) -> dict[Any, Any]:
        """Of what is kept and up to date, the tensors and the tuples of tensors: a copy may ``keep`` them."""
        version = self._versions()
        return {
            key: value
            for key, (then, value) in self._cache.items()
            if then == version and all(isinstance(v, Tensor) for v in _several(value))
        }

    def derived(self, key: Any, make: Callable[[], T]) -> T:
        """As ``kept``, but computed each time where gradients are needed."""
        return make() if self.needs_gradient else self.kept(key, make)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": {}}


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _moved(value: Any, move: Callable[[Tensor], Tensor]) -> Any:
    return tuple(map(move, value)) if isinstance(value, tuple) else move(value)


class PointCloud(Keeper):
    r"""A batch of point clouds of different sizes, packed one after the other, never padded.

    Cloud ``b`` owns the rows ``offsets[b]:offsets[b + 1]`` of ``points``. Clouds may be empty.

    Args:
        points: coordinates, float32 or float64, 1 to 3 dimensions.
        lengths: points per cloud, in order; ``None`` means that all points are one cloud.

    Shapes:
        - points: ``[N, D]``, D = 1, 2 or 3
        - lengths: ``[B]``, summing to N
        - offsets: ``[B + 1]``, int64

    The input is checked once, here: what a ``PointCloud`` holds is finite and consistent.
    """

    names: Tensor | None = None
    """``[N]``: where the points are sorted along a curve through space (as on the levels of a ``Hierarchy``),
    their places before that, by which random choices know them; ``None``: they are not sorted."""

    def __init__(self, points: Tensor, lengths: Sequence[int] | Tensor | None = None) -> None:
        _check_points(points)
        self.points = points.contiguous()
        self.offsets = _offsets_of([points.shape[0]] if lengths is None else lengths, points)
        self._cache = {}

    @classmethod
    def _trusted(cls, points: Tensor, offsets: Tensor, names: Tensor | None = None) -> PointCloud:
        """A cloud made from parts of a checked one; nothing is checked again."""
        parts = {"points": points.contiguous(), "offsets": offsets}
        return _of_parts(parts if names is None else {**parts, "names": names})

    @classmethod
    def from_list(cls, clouds: Iterable[Tensor]) -> PointCloud:
        """Packs a list of ``[N_b, D]`` tensors into one batch."""
        clouds = list(clouds)
        if not clouds:
            raise ValueError("from_list needs at least one tensor of points, got an empty list")
        for cloud in clouds:
            _check_points(cloud)
        kinds = {(c.shape[1], c.dtype, c.device) for c in clouds}
        if len(kinds) > 1:
            raise ValueError(
                "all clouds of a batch need the same dimension, dtype and device, got "
                + ", ".join(sorted(f"{d}D {t} on {v}" for d, t, v in kinds))
            )
        return cls(torch.cat(clouds), [c.shape[0] for c in clouds])

    @classmethod
    def from_batch(cls, points: Tensor, batch: Tensor, num_clouds: int | None = None) -> PointCloud:
        """Packs points that carry the index of their cloud (PyTorch Geometric's convention).

        Args:
            points: ``[N, D]``.
            batch: ``[N]`` integers, ascending; a cloud index that is left out is an empty cloud.
            num_clouds: number of clouds, to keep empty ones at the end; default ``batch.max() + 1``.
        """
        _check_points(points)
        if not isinstance(batch, Tensor) or batch.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"batch must be an int64 or int32 tensor, got {kind_of(batch)}")
        if batch.shape != points.shape[:1]:
            wanted = f"expected shape [{points.shape[0]}], got {list(batch.shape)}"
            raise ValueError(f"batch must hold one cloud index per point: {wanted}")
        count = int(batch[-1]) + 1 if batch.numel() else 0
        if batch.numel() and (int(batch[0]) < 0 or bool((batch[1:] < batch[:-1]).any())):
            raise ValueError(
                "batch must be ascending from 0 (points of a cloud stand together); "
                "sort points and batch by batch first"
            )
        if num_clouds is not None and num_clouds < count:
            raise ValueError(f"batch names cloud {count - 1}, but num_clouds is {num_clouds}")
        size = max(count, 1) if num_clouds is None else num_clouds
        return cls(points, torch.bincount(batch, minlength=size))

    # What it holds

    @property
    def num_points(self) -> int:
        return self.points.shape[0]

    @property
    def num_clouds(self) -> int:
        return self.offsets.shape[0] - 1

    @property
    def dim(self) -> int:
        return self.points.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.points.dtype

    @property
    def device(self) -> torch.device:
        return self.points.device

    @property
    def lengths(self) -> Tensor:
        """Points per cloud, ``[B]``."""
        return self.offsets.diff()

    @property
    def batch(self) -> Tensor:
        """Cloud index of each point, ``[N]`` (PyTorch Geometric's convention)."""
        return self.kept("batch", lambda: torch.repeat_interleave(self.lengths, output_size=self.num_points))

    def __len__(self) -> int:
        """The number of points: indexing selects points, not clouds (``split`` gives those)."""
        return self.num_points

    def __repr__(self) -> str:
        lengths = self.lengths.tolist()
        shown = ", ".join(map(str, lengths[:4])) + (", ..." if len(lengths) > 4 else "")
        clouds = "1 cloud" if len(lengths) == 1 else f"{len(lengths)} clouds"
        return (
            f"PointCloud({clouds}, {self.num_points} points [{shown}], "
            f"{self.dim}D {str(self.dtype).removeprefix('torch.')}, {self.device})"
        )

    # Parts and copies

    def split(self) -> list[PointCloud]:
        """The clouds of the batch, one by one; the coordinates are views."""
        lengths = self.lengths
        offsets = torch.stack([torch.zeros_like(lengths), lengths], 1).unbind()
        parts = zip(self.points.split(lengths.tolist()), offsets, strict=True)
        return [PointCloud._trusted(*part) for part in parts]

    def __getitem__(self, index: Tensor | slice) -> PointCloud:
        """The cloud of the chosen points: an ascending index, a mask or a slice; B stays the same."""
        if isinstance(index, slice):
            if index.step is not None and index.step < 1:
                raise ValueError(f"a slice of points needs a positive step, got {index.step}")
            index = torch.arange(self.num_points, device=self.device)[index]
        if not isinstance(index, Tensor) or index.dtype not in (torch.int64, torch.int32, torch.bool):
            raise TypeError(
                f"points are chosen by an int64 tensor, a bool mask or a slice, got {kind_of(index)}; "
                "use split() for single clouds"
            )
        if index.dtype == torch.bool:
            if index.shape != (self.num_points,):
                raise ValueError(f"a mask needs shape [{self.num_points}], got {list(index.shape)}")
            index = index.nonzero().squeeze(1)
        if index.dim() != 1:
            raise ValueError(f"an index of points has one dimension, got shape {list(index.shape)}")
        low, high = torch.stack(index.aminmax()).tolist() if index.numel() else (0, -1)
        if not 0 <= low <= high + 1 <= self.num_points:
            raise ValueError(f"point index out of range: the cloud has {self.num_points} points")
        batch = self.batch[index]
        if bool((batch[1:] < batch[:-1]).any()):
            raise ValueError("the chosen points must keep the order of the clouds; sort the index")
        offsets = torch.searchsorted(batch, torch.arange(self.num_clouds + 1, device=self.device))
        return PointCloud._trusted(self.points[index], offsets)

    def to(self, *args: Any, **kwargs: Any) -> PointCloud:
        """A copy on another device or of another float dtype, as ``torch.Tensor.to``.

        What was computed from the points goes along, but for another dtype.
        """
        points = self.points.to(*args, **kwargs)
        if points is self.points:
            return self
        if points.dtype != self.dtype:
            _check_points(points)
        blocks = {"non_blocking": kwargs.get("non_blocking", False)}
        return self._copied(points, lambda part: part.to(points.device, **blocks))

    def pin_memory(self) -> PointCloud:
        return self._copied(self.points.pin_memory(), lambda part: part.pin_memory())

    def _copied(self, points: Tensor, move: Callable[[Tensor], Tensor]) -> PointCloud:
        copy = PointCloud._trusted(
            points, move(self.offsets), None if self.names is None else move(self.names)
        )
        if points.dtype == self.dtype:
            copy.keep({key: _moved(value, move) for key, value in self.carried().items()})
        return copy

    # What is computed once

    @property
    def needs_gradient(self) -> bool:
        return self.points.requires_grad

    def _versions(self) -> int:
        return 0 if self.points.is_inference() else self.points._version


def is_traced() -> bool:
    """Whether an export runs Python here, with tensors that hold no numbers."""
    return torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()


def _parts(cloud: PointCloud) -> tuple[dict[str, Tensor], None]:
    """What it is, without what was computed from it."""
    named = {"points": cloud.points, "offsets": cloud.offsets}
    return named if cloud.names is None else {**named, "names": cloud.names}, None


def _of_parts(parts: dict[str, Tensor], _: None = None) -> PointCloud:
    cloud = PointCloud.__new__(PointCloud)
    cloud.__dict__.update(parts, _cache={}, _traced=is_traced())
    return cloud


trees.register(PointCloud, _parts, _of_parts)


def is_ordinary(value: object) -> TypeGuard[float]:
    """Whether this is a positive number far from the limits of every dtype, and needs no close look."""
    return isinstance(value, float) and 1e-15 < value < 1e15


def per_cloud(value: float | Sequence[float] | Tensor, cloud: PointCloud, name: str) -> Tensor:
    """A positive length as one value per cloud, ``[B]``, in the dtype of the points."""
    if is_ordinary(value):
        return cloud.offsets.new_full((cloud.num_clouds,), value, dtype=cloud.dtype)
    if isinstance(value, bool):
        raise TypeError(f"{name} must be a number or one number per cloud, got bool")
    dtype = None if isinstance(value, Tensor) else torch.float64  # no detour through float32
    given = _numbers(value, name, "a number or one number per cloud", dtype)
    given = given.detach().cpu().to(torch.float64)
    if given.dim() > 1 or (given.dim() == 1 and given.shape[0] not in (1, cloud.num_clouds)):
        raise ValueError(
            f"{name} must be a number or one number for each of the {cloud.num_clouds} clouds, "
            f"got shape {list(given.shape)}"
        )
    values = given.to(cloud.dtype)
    tiny = torch.finfo(cloud.dtype).tiny  # below it a square has lost its digits
    if not bool((torch.isfinite(values) & (values > 0) & (values * values >= tiny)).all()):
        raise ValueError(
            f"{name} must be positive and finite (and its square not vanish in {cloud.dtype}), got {value}"
        )
    return values.to(cloud.device).expand(cloud.num_clouds).contiguous()


def _numbers(value: Any, name: str, wanted: str, dtype: torch.dtype | None = None) -> Tensor:
    """What a user gave as numbers (of Python, numpy or torch), as a tensor."""
    try:
        return torch.as_tensor(value, dtype=dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(f"{name} must be {wanted}, got {value!r:.80}") from None


def check_cloud(cloud: object) -> None:
    if not isinstance(cloud, PointCloud):
        raise TypeError(f"cloud must be a PointCloud, got {type(cloud).__name__}")


def _check_points(points: object) -> None:
    if not isinstance(points, Tensor):
        raise TypeError(f"points must be a torch.Tensor of shape [N, D], got {kind_of(points)}")
    if points.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"points must be float32 or float64, got {points.dtype}")
    if points.dim() != 2 or points.shape[1] not in (1, 2, 3):
        raise ValueError(f"points must have shape [N, D] with D = 1, 2 or 3, got {list(points.shape)}")
    # One cheap pass: a finite sum has only finite terms; an overflowing one is looked at closely.
    values = points.detach()
    if not math.isfinite(float(values.sum())) and not bool(torch.isfinite(values).all()):
        bad = int((~torch.isfinite(values)).any(dim=1).sum())
        raise ValueError(f"points must be finite, got NaN or infinity in {bad} of {len(values)} points")


def _offsets_of(lengths: object, points: Tensor) -> Tensor:
    wanted = "integers, one per cloud"
    given = _numbers(lengths, "lengths", wanted)
    if isinstance(lengths, int) or (given.numel() and given.is_floating_point()) or given.dtype == torch.bool:
        raise TypeError(f"lengths must be {wanted}, got {lengths!r:.80}")
    if given.dim() != 1:
        raise ValueError(f"lengths must have shape [B], got {list(given.shape)}")
    given = given.to(torch.int64)
    counts = given.tolist()  # whose sum does not wrap around
    if counts and min(counts) < 0:
        raise ValueError(f"lengths must not be negative, got {min(counts)}")
    if sum(counts) != points.shape[0]:
        raise ValueError(f"lengths sum to {sum(counts)}, but there are {points.shape[0]} points")
    return _cumulate(given).to(points.device)


def _cumulate(lengths: Tensor) -> Tensor:
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def kind_of(value: object) -> str:
    """What a value is, for errors."""
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {list(value.shape)}"
    return type(value).__name__
