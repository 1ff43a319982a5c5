"""The one layer: a basis, an estimator, and the weights that join them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pointvar import ops
from pointvar.basis import Basis
from pointvar.estimator import Estimator
from pointvar.geometry import Neighborhood
from pointvar.precondition import Preconditioned


class PointConvolution(Preconditioned):
    r"""A point convolution: project the features onto the basis, then one matrix product.

    .. math::
        \phi[x, i, c] = \sum_{y \in N(x)} q(x, y) \, b_i((y - x) / r) \, F[y, c], \qquad
        \mathrm{out}[x, o] = \sum_{i, c} \phi[x, i, c] \, W[i, c, o] + \beta[o]

    With unit response, each projection is divided by its own response to the feature 1,

    .. math::
        \tilde\phi(x) = \phi(x) / s(x), \qquad
        s(x) = \left\| \sum_{y \in N(x)} q(x, y) \, b((y - x) / r) \right\|_2

    (0 where s is 0), so that a constant feature keeps its norm whatever the number of neighbours,
    their density and the scale of the basis.

    Args:
        in_channels: C
        out_channels: O
        basis: the functions b, K of them.
        estimator: the weights q.
        bias: adds a learned :math:`\beta`.
        unit_response: divides by the response s.
        precondition: learns the weights in coordinates in which the basis functions do not overlap, see
            ``pointvar.precondition``. The parameter is then ``coordinates``, and ``weight`` is computed from
            it. It may be set, and written into as long as no pass has been made since it was asked for.
        method: a name to be shown.
        generator: where the weights come from; default: torch's global generator.

    Shapes (N support points, M queries):
        - weight: ``[K, C, O]``
        - features: ``[N, C]``; result: ``[M, O]``

    Under autocast the matrix product is done in the lower precision, everything before it in the
    precision of the points. A query without neighbours gets the bias alone.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        basis: Basis,
        estimator: Estimator,
        bias: bool = True,
        unit_response: bool = False,
        *,
        precondition: bool = False,
        method: str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if not isinstance(basis, Basis):
            raise TypeError(f"basis must be a pointvar.Basis, got {type(basis).__name__}")
        if not isinstance(estimator, Estimator):
            raise TypeError(f"estimator must be a pointvar.Estimator, got {type(estimator).__name__}")
        if not isinstance(getattr(basis, "size", None), int):
            raise TypeError(f"{type(basis).__name__} must set size, its number of functions, to an integer")
        if min(in_channels, out_channels, basis.size) < 1:
            raise ValueError(
                f"a convolution needs at least one channel in, one out and one basis function, got "
                f"{in_channels}, {out_channels} and {basis.size}"
            )
        super().__init__(basis, (in_channels, out_channels), precondition)
        self.in_channels, self.out_channels, self.estimator = in_channels, out_channels, estimator
        self.unit_response, self.method = unit_response, method
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws the weights from N(0, 2 / (K C)), the standard, and sets the bias to 0."""
        self.refresh_precondition()
        deviation = (2 / (self.basis.size * self.in_channels)) ** 0.5
        nn.init.normal_(self.learned, 0, deviation, generator=generator)
        if self.precondition:
            self.weight = self.learned.detach()
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, features: Tensor, hood: Neighborhood) -> Tensor:
        self._check(features, hood)
        weight, mixing = self._factors(hood.num_edges)
        return ops.convolve(features, weight, self._edges(hood)._replace(mixing=mixing), self.bias)

    def project(self, features: Tensor, hood: Neighborhood) -> Tensor:
        """The projection, ``[M, K * C]``, basis-major: ``phi.view(M, K, C)``. Large: mind the memory."""
        self._check(features, hood)
        return ops.project(features, self._edges(hood))

    @torch.no_grad()
    def second_moment(self, features: Tensor, hood: Neighborhood) -> Tensor:
        r"""Z, the mean over the queries of :math:`\|\phi[x]\|^2`, as a float64 scalar; 0 if there are none.

        The variance of the output is Z times that of the weights. The projection is never stored.
        """
        self._check(features, hood)
        return ops.second_moment(features, self._edges(hood))

    def _edges(self, hood: Neighborhood) -> ops.Edges:
        """The neighbourhood with basis and estimator on its edges; geometry is never in low precision."""
        device = hood.indices.device.type
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return self._edges(hood)
        offsets, radius, q = hood.relative_positions(), hood.edge_radius(), self.estimator(hood)
        _check_shape(self.estimator, q, hood.num_edges)
        if q.dtype != offsets.dtype:
            name = type(self.estimator).__name__
            raise TypeError(
                f"{name} must give weights in the dtype of the points, {offsets.dtype}, got {q.dtype}"
            )

        def values() -> Tensor:
            b = self.basis(offsets, radius)
            _check_shape(self.basis, b, hood.num_edges, self.basis.size)
            return b * q[:, None]

        known = self.basis.native(offsets, radius)
        functions = ops.Values(values()) if known is None else ops.Known(known, self.basis.size, q, values)
        return ops.Edges(
            *(hood.row_offsets, hood.indices, functions, self.unit_response),
            transposed=hood.transposed,
            orders=hood.orders,
        )

    def _check(self, features: Tensor, hood: Neighborhood) -> None:
        if not isinstance(hood, Neighborhood):
            raise TypeError(f"a convolution takes features and a Neighborhood, got {type(hood).__name__}")
        if not isinstance(features, Tensor):
            raise TypeError(f"features must be a tensor of shape [N, C], got {type(features).__name__}")
        support = hood.support
        if features.dim() != 2 or features.shape[1] != self.in_channels:
            raise ValueError(f"features must have shape [N, {self.in_channels}], got {list(features.shape)}")
        if features.shape[0] != support.num_points:
            raise ValueError(
                f"there are features of {features.shape[0]} points, but the neighbourhood has "
                f"{support.num_points} support points"
            )
        if self.basis.dim is not None and self.basis.dim != support.dim:
            raise ValueError(f"the basis is made for {self.basis.dim}D, the points are {support.dim}D")
        learned = self.learned
        if not features.device == support.device == learned.device:
            raise ValueError(
                f"features ({features.device}), points ({support.device}) and weights "
                f"({learned.device}) must be on one device"
            )
        if learned.dtype != support.dtype:
            raise TypeError(
                f"weights ({learned.dtype}) and points ({support.dtype}) need the same dtype; "
                "convert one with .to()"
            )
        lower = torch.is_autocast_enabled(features.device.type) and features.dtype in (
            torch.bfloat16,
            torch.float16,
        )
        if features.dtype != support.dtype and not lower:
            raise TypeError(f"features ({features.dtype}) need the dtype of the points ({support.dtype})")

    def extra_repr(self) -> str:
        name = f"{self.method}, " if self.method else ""
        unit = ", unit_response=True" if self.unit_response else ""
        unit += ", precondition=True" if self.precondition else ""
        return f"{name}{self.in_channels}, {self.out_channels}, bias={self.bias is not None}{unit}"


def _check_shape(module: nn.Module, values: Tensor, *shape: int) -> None:
    what = "[E] weights" if len(shape) == 1 else "[E, K] values"
    if not isinstance(values, Tensor):
        got = type(values).__name__
        raise TypeError(f"{type(module).__name__} must give a tensor of {what}, {list(shape)}, got {got}")
    if values.shape != shape:
        raise ValueError(
            f"{type(module).__name__} must give {what}, {list(shape)}, got shape {list(values.shape)}"
        )
