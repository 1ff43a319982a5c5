r"""Axis 1 of the zoo: what a convolution sees of an offset, K basis functions :math:`b_i((y - x) / r)`.

Every point convolution of the literature is a pair of a basis (this room) and an estimator of the
integral (``estimator.py``); the layer that joins them is ``PointConvolution``. Known pairs:

================  =====================================  ==================
method            basis                                  estimator
================  =====================================  ==================
``PCCNN``         ``Gaussian``                           ``MonteCarlo``
``PointwiseCNN``  ``NearestPoint`` on a grid             ``Average``
``SPHConv``       ``SphericalBins``                      ``Average``
``KPConv``        ``LinearCorrelation``                  ``Sum``
``KPConvN``       ``LinearCorrelation``, twice as wide   ``MonteCarlo``
``InterpCNN``     ``LinearCorrelation`` on a grid        ``Average``
``ConvPoint``     ``MLPCorrelation``                     ``Average``
``MCConv``        ``MLP``                                ``MonteCarlo``
``PointConv``     ``MLP``, offsets not scaled            ``LearnedDensity``
``FlexConv``      ``Dot``                                ``Sum``
================  =====================================  ==================
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pointvar import kernel_points
from pointvar.ops import Native

__all__ = [
    "MLP",
    "Basis",
    "Dot",
    "Gaussian",
    "LinearCorrelation",
    "MLPCorrelation",
    "NearestPoint",
    "SphericalBins",
]


class Basis(nn.Module, ABC):
    """A set of functions of the offset. A new one sets ``size`` and defines ``forward``."""

    size: int
    """K, the number of functions."""
    dim: int | None = None
    """D, the dimension of the offsets, where the basis is made for one."""

    @abstractmethod
    def forward(self, offsets: Tensor, radius: Tensor) -> Tensor:
        """The functions at each offset.

        Shapes:
            - offsets: ``[E, D]``, (y - x) / r
            - radius: ``[E, 1]``, r
            - result: ``[E, K]``
        """

    def native(self, offsets: Tensor, radius: Tensor) -> Native | None:
        """How the native kernels can evaluate this basis themselves; ``None``: by ``forward``."""
        return None

    @property
    def sees_length(self) -> bool:
        """Whether the parameters must suit the radius."""
        return False

    def reset_parameters(self, generator: torch.Generator | None = None, radius: float | None = None) -> None:
        """Draws the basis's own parameters anew, where they depend on it for that radius; most have none."""


class _AroundPoints(Basis):
    """Functions of the distances to kernel points, which stay where they are."""

    points: Tensor

    def __init__(
        self, num_basis: int, dim: int, points: Tensor | None, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        points = kernel_points.ball(num_basis, dim, generator) if points is None else points
        self.register_buffer("points", _kernel(points))
        self.size, self.dim = self.points.shape
        self.spacing = kernel_points.spacing(points)

    def distance(self, offsets: Tensor) -> Tensor:
        """``[E, K]``; exact, and with a gradient of 0 where a distance is 0."""
        return torch.cdist(offsets, self.points, compute_mode="donot_use_mm_for_euclid_dist")

    def extra_repr(self) -> str:
        return f"{self.size}, dim={self.dim}"


class Gaussian(_AroundPoints):
    r"""A Gaussian around each kernel point, :math:`b_i(\tau) = \exp(-\|p_i - \tau\|^2 / 2 \sigma^2)`.

    Args:
        num_basis: K
        dim: D
        sigma: in units of the receptive field; default: 0.4 times the points' spacing.
        points: kernel points ``[K, D]``, in place of ``num_basis`` and ``dim``.
        generator: fixes the orientation of the points; default: torch's global generator.
    """

    def __init__(
        self,
        num_basis: int = 16,
        dim: int = 3,
        sigma: float | None = None,
        points: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_basis, dim, points, generator)
        self.sigma = 0.4 * self.spacing if sigma is None else _length("sigma", sigma)

    def native(self, offsets: Tensor, radius: Tensor) -> Native:
        return Native("gaussian", offsets, self.points.flatten(), (self.sigma,))

    def forward(self, offsets: Tensor, radius: Tensor) -> Tensor:
        return torch.exp(-0.5 * (self.distance(offsets) / self.sigma).square())

    def extra_repr(self) -> str:
        return f"{self.size}, dim={self.dim}, sigma={self.sigma:.4g}"


class LinearCorrelation(_AroundPoints):
    r"""A hat around each kernel point, :math:`b_i(\tau) = \max(1 - \|p_i - \tau\| / s, 0)`.

    Args:
        width: s, in units of the receptive field; default: the points' spacing.
        num_basis, dim, points, generator: as in ``Gaussian``.
    """

    def __init__(
        self,
        num_basis: int = 16,
        dim: int = 3,
        width: float | None = None,
        points: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_basis, dim, points, generator)
        self.width = self.spacing if width is None else _length("width", width)

    def native(self, offsets: Tensor, radius: Tensor) -> Native:
        return Native("linear", offsets, self.points.flatten(), (self.width,))

    def forward(self, offsets: Tensor, radius: Tensor) -> Tensor:
        return functional.relu(1 - self.distance(offsets) / self.width)

    def extra_repr(self) -> str:
        return f"{self.size}, dim={self.dim}, width={self.width:.4g}"


class NearestPoint(_AroundPoints):
    r"""Boxes: 1 for the nearest kernel point (the first of equals) and 0 for the others.

    .. math:: b_i(\tau) = [\, i = \arg\min_j \|p_j - \tau\| \,]

    Constant between its jumps: nothing flows back to the positions.

    Args:
        num_basis, dim, points, generator: as in ``Gaussian``.
    """

    def __init__(
        self,
        num_basis: int = 16,
        dim: int = 3,
        points: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_basis, dim, points, generator)

    def index(self, offsets: Tensor) -> Tensor:
        """``[E]``: the one function that is not 0."""
        return self.distance(offsets.detach()).argmin(1)

    def native(self, offsets: Tensor, radius: Tensor) -> Native:
        return Native("nearest", offsets.detach(), self.points.flatten())

    def forward(self, offsets: Tensor, radius: Tensor) -> Tensor:
        return functional.one_hot(self.index(offsets), self.size).to(offsets.dtype)


class SphericalBins(Basis):
    r"""Boxes in spherical coordinates, and one box for the centre (closer than 1e-4 of the radius).

    .. math:: b_i(\tau) = [\, \tau \text{ lies in bin } i \,], \qquad
              i = 1 + (\text{radial} \cdot A + \text{azimuth}) \cdot P + \text{polar}

    In 3D the polar axis is the last one, up. In 2D there is no polar angle, :math:`K = R A + 1`; in
    1D left and right are left, :math:`K = 2 R + 1`. Nothing flows back to the positions.

    Args:
        radial, azimuth, polar: numbers of bins R, A, P, of equal size; :math:`K = R A P + 1`.
        dim: D
        authors_azimuth: for comparison, atan(y / x) in place of atan2(y, x), as in the authors' code.
            It cannot tell opposite directions apart and reaches only two of five bins.
    """

    def __init__(
        self,
        radial: int = 1,
        azimuth: int = 5,
        polar: int = 3,
        dim: int = 3,
        authors_azimuth: bool = False,
    ) -> None:
        super().__init__()
        if min(radial, azimuth, polar) < 1:
            raise ValueError(f"each coordinate needs a bin, got {radial} x {azimuth} x {polar}")
        _check_dim(dim)
        self.dim, self.radial, self.authors_azimuth = dim, radial, authors_azimuth
        self.azimuth = azimuth if dim > 1 else 2
        self.polar = polar if dim == 3 else 1
        self.size = self.radial * self.azimuth * self.polar + 1

    def index(self, offsets: Tensor) -> Tensor:
        """``[E]``: the one function that is not 0."""
        offsets = offsets.detach()
        distance = offsets.norm(dim=1)
        bin = _bin(distance, 1.0, self.radial) * self.azimuth
        if self.dim == 1:
            bin = bin + (offsets[:, 0] > 0).long()
        else:
            bin = bin + _bin(self._azimuth(offsets[:, 0], offsets[:, 1]), 2 * math.pi, self.azimuth)
        if self.dim == 3:
            polar = torch.atan2(offsets[:, :2].norm(dim=1), offsets[:, 2])
            bin = bin * self.polar + _bin(polar, math.pi, self.polar)
        return torch.where(distance < 1e-4, 0, bin + 1)

    def _azimuth(self, x: Tensor, y: Tensor) -> Tensor:
        if self.authors_azimuth:
            return torch.atan(y / (x + 1e-6))
        angle = torch.atan2(y, x)
        return torch.where(angle < 0, angle + 2 * math.pi, angle)

    def native(self, offsets: Tensor, radius: Tensor) -> Native:
        bins = (self.radial, self.azimuth, self.polar, self.authors_azimuth)
        return Native("spherical", offsets.detach(), constants=tuple(map(float, bins)))

    def forward(self, offsets: Tensor, radius: Tensor) -> Tensor:
        return functional.one_hot(self.index(offsets), self.size).to(offsets.dtype)

    def extra_repr(self) -> str:
        bins = f"{self.radial} x {self.azimuth} x {self.polar} + 1, dim={self.dim}"
        return bins + (", authors_azimuth=True" if self.authors_azimuth else "")


class MLP(Basis):
    r"""A learned affine map and a leaky ReLU, :math:`b_i(\tau) = \mathrm{lrelu}(a_i^T \tau + c_i)`.

    The linear second half of the network is the convolution weight itself.

    Args:
        num_basis: K
        dim: D
        slope: of the leaky ReLU below 0; 0 makes it a ReLU.
        scaled: the map sees (y - x) / r; if not, it sees y - x.
        batch_norm: normalises between map and ReLU, over the edges of a batch.
        radius: nominal receptive field, for a map that sees y - x: it is drawn from N(0, 1 / D r^2).
            Without it, and with batch normalisation, from N(0, 1 / D).
        generator: where the map comes from; default: torch's global generator.
    """

    def __init__(
        self,
        num_basis: int = 16,
        dim: int = 3,
        slope: float = 0.2,
        scaled: bool = True,
        batch_norm: bool = False,
        radius: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _check_dim(dim)
        if radius is not None:
            _length("the nominal radius", radius)
        self.size, self.dim, self.slope, self.scaled, self.radius = num_basis, dim, slope, scaled, radius
        self.linear = nn.Linear(dim, num_basis)
        self.norm = nn.BatchNorm1d(num_basis) if batch_norm else None
        self.reset_parameters(generator)

    @property
    def sees_length(self) -> bool:
        """The map sees y - x, and nothing normalises what it gives."""
        return not self.scaled and self.norm is None

    def reset_parameters(self, generator: torch.Generator | None = None, radius: float | None = None) -> None:
        """Draws the map anew, for the nominal radius unless another is given."""
        radius = self.radius if radius is None else radius
        unit = 1.0 if radius is None or self.norm is not None else radius
        nn.init.normal_(self.linear.weight, 0, self.linear.in_features**-0.5 / unit, generator=generator)
        nn.init.zeros_(self.linear.bias)
        if self.norm is not None:
            self.norm.reset_parameters()

    def native(self, offsets: Tensor, radius: Tensor) -> Native | None:
        if self.norm is not None:
            return None
        parameters = torch.cat([self.linear.weight.flatten(), self.linear.bias])
        return Native("mlp", offsets if self.scaled else offsets * radius, parameters, (self.slope,))

    def forward(self, offsets: Tensor, radius: Tensor) -> Tensor:
        values = self.linear(offsets if self.scaled else offsets * radius)
        if self.norm is not None:
            values = self.norm(values)
        return functional.leaky_relu(values, self.slope)

    def extra_repr(self) -> str:
        nominal = "" if self.radius is None else f", radius={self.radius:.4g}"
        return f"{self.size}, dim={self.dim}, slope={self.slope}, scaled={self.scaled}{nominal}"


class MLPCorrelation(Basis):
    r"""A network that sees the differences to all kernel points together.

    .. math:: b(\tau) = \mathrm{mlp}(\tau - p_1, \ldots, \tau - p_K), \qquad D K \to 2 K \to K \to K

    with a ReLU after each map, also the last. The kernel points are learned.

    Args:
        num_basis: K
        dim: D
        points: kernel points ``[K, D]`` to start from, in place of ``num_basis`` and ``dim``;
            default: uniform in the unit ball.
        generator: where points and maps come from; default: torch's global generator.
    """

    def __init__(
        self,
        num_basis: int = 16,
        dim: int = 3,
        points: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        points = kernel_points.uniform(num_basis, dim, generator) if points is None else points
        self.points = nn.Parameter(_kernel(points))
        size, dim = self.points.shape
        self.size, self.dim = size, dim
        self.mlp = nn.Sequential(
            *(nn.Linear(dim * size, 2 * size), nn.ReLU()),
            *(nn.Linear(2 * size, size), nn.ReLU()),
            *(nn.Linear(size, size), nn.ReLU()),
        )
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None, radius: float | None = None) -> None:
        """Draws the maps as ``nn.Linear`` does; the kernel points stay."""
        for linear in self.mlp:
            if isinstance(linear, nn.Linear):
                bound = linear.in_features**-0.5
                nn.init.uniform_(linear.weight, -bound, bound, generator=generator)
                nn.init.uniform_(linear.bias, -bound, bound, generator=generator)

    def forward(self, offsets: Tensor, radius: Tensor) -> Tensor:
        # The first map is affine in the offset: one D -> 2K map stands for D K -> 2K.
        first: Any = self.mlp[0]
        weight = first.weight.view(-1, *self.points.shape)
        bias = first.bias - torch.einsum("okd,kd->o", weight, self.points)
        return self.mlp[1:](functional.linear(offsets, weight.sum(1), bias))

    def extra_repr(self) -> str:
        return f"{self.size}, dim={self.dim}"


class Dot(Basis):
    r"""The offset itself and the constant, :math:`b(\tau) = (\tau, 1)`; K = D + 1.

    With its weights this is an affine function of the offset for each pair of channels.
    """

    def __init__(self, dim: int = 3) -> None:
        super().__init__()
        _check_dim(dim)
        self.size, self.dim = dim + 1, dim

    def native(self, offsets: Tensor, radius: Tensor) -> Native:
        return Native("dot", offsets)

    def forward(self, offsets: Tensor, radius: Tensor) -> Tensor:
        return functional.pad(offsets, (0, 1), value=1.0)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


def _check_dim(dim: int) -> None:
    if dim not in (1, 2, 3):
        raise ValueError(f"a basis exists in 1, 2 or 3 dimensions, got {dim}")


def _length(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value}")
    return float(value)


def _kernel(points: Tensor) -> Tensor:
    """Kernel points as a layer keeps them, in the dtype that its other parameters start with."""
    if not isinstance(points, Tensor):
        raise TypeError(f"kernel points must be a tensor of shape [K, D], got {type(points).__name__}")
    if points.dim() != 2 or points.shape[1] not in (1, 2, 3) or not len(points):
        raise ValueError(f"kernel points must have shape [K, D] with D = 1, 2 or 3, got {list(points.shape)}")
    if not bool(points.isfinite().all()):
        raise ValueError("kernel points must be finite, got NaN or infinity")
    return points.detach().to(torch.get_default_dtype(), copy=True).contiguous()


def _bin(value: Tensor, range: float, count: int) -> Tensor:
    """Which of the equal parts of [0, range] holds the value; upper ends belong to a part."""
    return (value * (count / range)).ceil().long().sub(1).clamp(0, count - 1)
