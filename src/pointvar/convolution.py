"""The one layer: a basis, an estimator, and the weights that join them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pointvar import ops
from pointvar.basis import Basis
from pointvar.cloud import kind_of
from pointvar.estimator import Estimator
from pointvar.geometry import Neighborhood
from pointvar.precondition import coordinates_of, preconditioner, weight_of


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

    preconditioner: Tensor

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
        super().__init__()
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
        self.in_channels, self.out_channels = in_channels, out_channels
        self.basis, self.estimator = basis, estimator
        self.unit_response, self.method = unit_response, method
        self.precondition = precondition
        self._shown = _Shown()
        self._radius: float | None = None
        learned = nn.Parameter(torch.empty(basis.size, in_channels, out_channels))
        if precondition:
            self.coordinates = learned
            self.register_buffer("preconditioner", torch.eye(basis.size))
        else:
            self.weight = learned
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.register_state_dict_pre_hook(_save_written)
        self.register_state_dict_post_hook(_save_weight)
        self.register_load_state_dict_pre_hook(_load_weight)
        self.register_load_state_dict_post_hook(_settle_weight)
        self.reset_parameters(generator)

    @property
    def weight(self) -> Tensor:
        """W, ``[K, C, O]``, as published. What is written into it in place counts from then on."""
        if self.precondition:
            if self._shown.written() is not None:
                self._take_over()
            return self._shown.show(weight_of(self.preconditioner, self.coordinates))
        found = self._parameters.get("weight", self.__dict__.get("weight"))
        if found is None:
            raise AttributeError("a convolution whose weight was taken away")
        return found

    @weight.setter
    def weight(self, value: Tensor) -> None:
        if not self.precondition:  # what torch puts in the place of a parameter: pruning, weight norm
            self.__dict__["weight"] = value
            return
        if not isinstance(value, Tensor) or value.shape != self.coordinates.shape:
            shapes = f"{list(self.coordinates.shape)}, got {kind_of(value)}"
            raise ValueError(f"the weight of this convolution must have shape {shapes}")
        self._shown.forget()
        with torch.no_grad():
            self.coordinates.copy_(coordinates_of(self.preconditioner, value.to(self.coordinates)))

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """With preconditioning, a parameter in the place of the weight is a value of it."""
        if name == "weight" and param is not None and "coordinates" in self._parameters:
            self.weight = param.detach()
        else:
            super().register_parameter(name, param)

    def _take_over(self) -> None:
        """With preconditioning: what was written into the weight since it was asked for."""
        if torch.compiler.is_compiling():
            return
        written = self._shown.written()
        self._shown.forget()
        if written is not None:
            self.weight = written

    def __getstate__(self) -> dict[str, Any]:
        if self.precondition:
            self._take_over()
        return self.__dict__

    @property
    def learned(self) -> Tensor:
        """The parameter behind the weight: itself, or with preconditioning its coordinates."""
        return self.coordinates if self.precondition else self.weight

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws the weights from N(0, 2 / (K C)), the standard, and sets the bias to 0."""
        self.refresh_precondition()
        deviation = (2 / (self.basis.size * self.in_channels)) ** 0.5
        nn.init.normal_(self.learned, 0, deviation, generator=generator)
        if self.precondition:
            self.weight = self.learned.detach()
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @torch.no_grad()
    def refresh_precondition(self, radius: float | None = None) -> None:
        """Preconditions for the basis as it is now; the weight stays.

        A basis that is learned changes. The coordinates of momenta in an optimiser stay as they were.

        Args:
            radius: of the receptive field, where the basis sees it; default: the last one given, or that
                which the basis was made for.
        """
        if not self.precondition:
            return
        self._radius = self._radius if radius is None else radius
        weight = self.weight
        self.preconditioner.copy_(preconditioner(self.basis, self._radius))
        self.weight = weight

    def forward(self, features: Tensor, hood: Neighborhood) -> Tensor:
        self._check(features, hood)
        if not self.precondition:
            return ops.convolve(features, self.weight, self._edges(hood), self.bias)
        self._take_over()
        if self._mixes(hood):
            edges = self._edges(hood)._replace(mixing=self.preconditioner)
            return ops.convolve(features, self.coordinates, edges, self.bias)
        weight = weight_of(self.preconditioner, self.coordinates)
        return ops.convolve(features, weight, self._edges(hood), self.bias)

    def _mixes(self, hood: Neighborhood) -> bool:
        """phi M V = phi W: of few points, it takes less time to mix the functions than to mix the weights.

        A compiled graph serves any number of points.
        """
        few = 8 * self.in_channels * self.out_channels
        return not torch.compiler.is_compiling() and hood.num_edges < few

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


class _Shown:
    """The weight that was computed for somebody, who may write into it. No copy and no file has it."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.weight: Tensor | None = None
        self.before: Tensor | None = None

    def show(self, weight: Tensor) -> Tensor:
        """The weight, in the memory of the one shown before if it is the same, so that either may be written
        into: ``conv.weight.mul_(2 / conv.weight.std())``."""
        watched = not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active())
        if not watched:
            return weight
        if self.weight is not None and self.before is not None and _same(weight, self.before):
            weight.data = self.weight.data
        else:
            self.before = weight.detach().clone()
        self.weight = weight
        return weight

    def written(self) -> Tensor | None:
        """The weight, if it is not as it was: no version tells what was written by way of ``.data``."""
        if torch.compiler.is_compiling() or self.weight is None or self.before is None:
            return None
        return None if _same(self.weight, self.before) else self.weight.detach()

    def __reduce__(self) -> Any:
        return _Shown, ()


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _save_written(conv: nn.Module, *_: Any) -> None:
    if isinstance(conv, PointConvolution) and conv.precondition:
        conv._take_over()


def _save_weight(conv: nn.Module, state: dict[str, Tensor], prefix: str, metadata: Any) -> None:
    """Puts W into a state dict."""
    if isinstance(conv, PointConvolution) and conv.precondition:
        weight = weight_of(state[prefix + "preconditioner"], state[prefix + "coordinates"])
        state[prefix + "weight"] = conv._shown.show(weight)  # who loads by hand copies into it


def _load_weight(conv: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Takes what a layer with preconditioning, or one without, has put into a state dict."""
    weight, known = state.get(prefix + "weight"), [prefix + "preconditioner", prefix + "coordinates"]
    if weight is None or not isinstance(conv, PointConvolution):
        return
    saved = [state.get(name) for name in known]
    if not conv.precondition:
        for name in known:
            state.pop(name, None)
        return
    conv._shown.forget()
    del state[prefix + "weight"]
    matrix, coordinates = saved
    if matrix is not None and coordinates is not None and torch.equal(weight_of(matrix, coordinates), weight):
        return
    # W alone counts: V is found when basis and preconditioner are there, after all is loaded.
    conv.__dict__["_arriving"] = weight, matrix is None
    state[known[0]] = conv.preconditioner.detach().clone() if matrix is None else matrix
    state[known[1]] = weight.detach().clone()


def _settle_weight(conv: nn.Module, _: Any) -> None:
    weight, refresh = conv.__dict__.pop("_arriving", (None, False))
    if isinstance(conv, PointConvolution) and weight is not None and weight.shape == conv.learned.shape:
        if refresh:
            conv.refresh_precondition()
        conv.weight = weight


def _check_shape(module: nn.Module, values: Tensor, *shape: int) -> None:
    what = "[E] weights" if len(shape) == 1 else "[E, K] values"
    if not isinstance(values, Tensor):
        got = type(values).__name__
        raise TypeError(f"{type(module).__name__} must give a tensor of {what}, {list(shape)}, got {got}")
    if values.shape != shape:
        raise ValueError(
            f"{type(module).__name__} must give {what}, {list(shape)}, got shape {list(values.shape)}"
        )
