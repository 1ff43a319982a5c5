"""The one layer: a basis, an estimator, and the weights that join them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from pointvar.basis import Basis
from pointvar.estimator import Estimator
from pointvar.geometry import Neighborhood
from pointvar.ops import convolve as ops
from pointvar.ops import native


class PointConvolution(nn.Module):
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
        method: str | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(basis, Basis):
            raise TypeError(f"basis must be a pointvar.Basis, got {type(basis).__name__}")
        if not isinstance(estimator, Estimator):
            raise TypeError(f"estimator must be a pointvar.Estimator, got {type(estimator).__name__}")
        if min(in_channels, out_channels, basis.size) < 1:
            raise ValueError(
                f"a convolution needs at least one channel in, one out and one basis function, got "
                f"{in_channels}, {out_channels} and {basis.size}"
            )
        self.in_channels, self.out_channels = in_channels, out_channels
        self.basis, self.estimator = basis, estimator
        self.unit_response, self.method = unit_response, method
        self.weight = nn.Parameter(torch.empty(basis.size, in_channels, out_channels))
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters(generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws the weights from N(0, 2 / (K C)), the standard, and sets the bias to 0."""
        nn.init.normal_(
            self.weight, 0, (2 / (self.basis.size * self.in_channels)) ** 0.5, generator=generator
        )
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, features: Tensor, hood: Neighborhood) -> Tensor:
        self._check(features, hood)
        edges = self._edges(hood)
        weight = _autocast(edges.mixed(self.weight))
        training = torch.is_grad_enabled() and (features.requires_grad or weight.requires_grad)
        columns = hood.transposed() if training else (None, None, None)
        orders = hood.orders() if _native(hood) and features.nbytes > _CACHE else (None, None)
        out, response = ops.convolve(
            features,
            edges.values,
            weight,
            hood.row_offsets,
            hood.indices,
            edges.scale,
            edges.parameters,
            *columns,
            *orders,
            edges.basis,
            edges.constants,
        )
        if self.unit_response:
            out = _divide(out, edges.mixed(response.T).T)
        if self.bias is None:
            return out
        bias = self.bias.to(out.dtype)
        return out + bias if out.requires_grad else out.add_(bias)  # fresh memory is slow

    def project(self, features: Tensor, hood: Neighborhood) -> Tensor:
        """The projection, ``[M, K * C]``, basis-major: ``phi.view(M, K, C)``. Large: mind the memory."""
        self._check(features, hood)
        with torch.autocast(hood.indices.device.type, enabled=False):
            values = self.basis(hood.relative_positions(), hood.edge_radius())
            values = values * self.estimator(hood)[:, None]
        phi = ops.project(features, values, hood.row_offsets, hood.indices)
        return _divide(phi, _response(values, hood)) if self.unit_response else phi

    @torch.no_grad()
    def second_moment(self, features: Tensor, hood: Neighborhood) -> Tensor:
        r"""Z, the mean over the queries of :math:`\|\phi[x]\|^2`, as a float64 scalar; 0 if there are none.

        The variance of the output is Z times that of the weights. The projection is never stored.
        """
        self._check(features, hood)
        edges = self._edges(hood, mixing=False)
        return ops.second_moment(
            features,
            edges.values,
            hood.row_offsets,
            hood.indices,
            self.basis.size,
            self.unit_response,
            edges.scale,
            edges.parameters,
            edges.basis,
            edges.constants,
        )

    def _edges(self, hood: Neighborhood, mixing: bool = True) -> _Edges:
        """What the operators need to know of basis and estimator; geometry is never in low precision.

        A basis that is a mixture of what the kernels know can be left to the caller to mix, or not."""
        with torch.autocast(hood.indices.device.type, enabled=False):
            offsets, radius = hood.relative_positions(), hood.edge_radius()
            q = self.estimator(hood)
            if q.shape != (hood.num_edges,):
                raise ValueError(
                    f"{type(self.estimator).__name__} must give [E] = [{hood.num_edges}] weights, "
                    f"got shape {list(q.shape)}"
                )
            if _native(hood):
                known = self.basis.native(offsets, radius)
                if known is not None and (mixing or known.mixing is None):
                    parameters = known.parameters
                    if parameters is not None:
                        parameters = parameters.to(offsets.dtype)
                    return _Edges(
                        known.offsets, q, parameters, known.name, list(known.constants), known.mixing
                    )
            b = self.basis(offsets, radius)
        if b.shape != (hood.num_edges, self.basis.size):
            raise ValueError(
                f"{type(self.basis).__name__} must give [E, K] = [{hood.num_edges}, {self.basis.size}] "
                f"values, got shape {list(b.shape)}"
            )
        return _Edges(b * q[:, None])

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
        if not features.device == support.device == self.weight.device:
            raise ValueError(
                f"features ({features.device}), points ({support.device}) and weights "
                f"({self.weight.device}) must be on one device"
            )
        if self.weight.dtype != support.dtype:
            raise TypeError(
                f"weights ({self.weight.dtype}) and points ({support.dtype}) need the same dtype; "
                "convert one with .to()"
            )
        lower = torch.is_autocast_enabled(features.device.type) and features.dtype in _LOW
        if features.dtype != support.dtype and not lower:
            raise TypeError(f"features ({features.dtype}) need the dtype of the points ({support.dtype})")

    def extra_repr(self) -> str:
        name = f"{self.method}, " if self.method else ""
        unit = ", unit_response=True" if self.unit_response else ""
        return f"{name}{self.in_channels}, {self.out_channels}, bias={self.bias is not None}{unit}"


class _Edges(NamedTuple):
    """Basis and estimator on the edges: as values [E, K], or named, for the native kernels."""

    values: Tensor
    scale: Tensor | None = None
    parameters: Tensor | None = None
    basis: str = "values"
    constants: list[float] | None = None
    mixing: Tensor | None = None

    def mixed(self, rows: Tensor) -> Tensor:
        """M R of rows ``[K, ...]``: of weights, since (phi M) W = phi (M W), or of projections."""
        if self.mixing is None:
            return rows
        with torch.autocast(rows.device.type, enabled=False):
            return (self.mixing.to(rows.dtype) @ rows.flatten(1)).view_as(rows)


def _native(hood: Neighborhood) -> bool:
    return native.available and hood.indices.device.type == "cpu"


_CACHE = 1 << 24  # bytes of features that a processor keeps at hand, in whatever order they are read
_LOW = (torch.bfloat16, torch.float16)


def _autocast(weight: Tensor) -> Tensor:
    """The weight as a matrix product would see it here."""
    device = weight.device.type
    if torch.is_autocast_enabled(device) and weight.dtype == torch.float32:
        return weight.to(torch.get_autocast_dtype(device))
    return weight


def _response(values: Tensor, hood: Neighborhood) -> Tensor:
    """The projection of the feature 1, ``[M, K]``."""
    one = values.new_ones(hood.support.num_points, 1)
    return ops.project(one, values, hood.row_offsets, hood.indices)


def _divide(rows: Tensor, response: Tensor) -> Tensor:
    """Rows divided by the norm of their response, 0 where that is 0; safe to differentiate."""
    largest = response.detach().abs().amax(1, keepdim=True)  # so that no square under- or overflows
    alive = largest > 0
    largest = torch.where(alive, largest, 1)
    squared = (response / largest).square().sum(1, keepdim=True)
    norm = torch.where(alive, squared, 1).sqrt() * largest
    return torch.where(alive, rows / norm, 0).to(rows.dtype)
