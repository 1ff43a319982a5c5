"""The zoo: published point convolutions as pairs of a basis and an estimator, with their defaults.

A method chooses the pair, and makes a ``PointConvolution`` that carries its name as ``method``. All take

    in_channels, out_channels: C and O.
    num_basis: K (the paper uses 16 throughout).
    dim: D, 1 to 3.
    bias, unit_response, precondition: as in ``PointConvolution``.
    generator: where everything random comes from; default: torch's global generator.

``METHODS`` has them by name; ``resolve`` takes a name or any function like these.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Signature, signature
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from torch import Generator

from pointvar import basis, estimator
from pointvar.convolution import PointConvolution
from pointvar.kernel_points import ball, grid, spacing
from pointvar.registry import Registry

__all__ = [
    "METHODS",
    "PCCNN",
    "ConvPoint",
    "FlexConv",
    "InterpCNN",
    "KPConv",
    "KPConvN",
    "MCConv",
    "PointConv",
    "PointwiseCNN",
    "SPHConv",
    "resolve",
]

METHODS: dict[str, Callable[..., PointConvolution]] = {}
Pair = tuple[basis.Basis, estimator.Estimator]
K = TypeVar("K", contravariant=True)
P = ParamSpec("P")


class Method(Protocol[K, P]):
    """What all methods take; ``P`` is what only some do, and the generator."""

    def __call__(
        self,
        in_channels: int,
        out_channels: int,
        num_basis: K = ...,
        dim: int = 3,
        bias: bool = True,
        unit_response: bool = False,
        precondition: bool = False,
        *own: P.args,
        **named: P.kwargs,
    ) -> PointConvolution: ...


def method(choose: Callable[Concatenate[K, int, P], Pair]) -> Method[K, P]:
    """A method from the function that chooses its pair."""
    name, pair_of = choose.__name__, cast(Callable[..., Pair], choose)
    size, _, *own = signature(choose).parameters.values()
    size = size if size.default is None else size.replace(default=16)
    _, first, second, _, *shared, _, _ = signature(Method.__call__).parameters.values()
    accepted = Signature([first, second, size, *shared, *own], return_annotation="PointConvolution")

    @wraps(choose)
    def make(*args: Any, **kwargs: Any) -> PointConvolution:
        try:
            call = accepted.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}() {error}") from None
        call.apply_defaults()
        inputs, outputs, num_basis, dim, bias, unit_response, precondition, *rest = call.args
        pair = pair_of(num_basis, dim, *rest)
        options = {"precondition": precondition, "generator": call.arguments["generator"]}
        return PointConvolution(inputs, outputs, *pair, bias, unit_response, method=name, **options)

    vars(make)["__signature__"] = accepted
    METHODS[name] = make
    return make


@method
def PCCNN(num_basis: int, dim: int, bandwidth: float = 0.2, generator: Generator | None = None) -> Pair:
    r"""Gaussians around kernel points, Monte Carlo integration.

    .. math:: b_i(\tau) = \exp(-\|p_i - \tau\|^2 / 2 \sigma^2), \quad q = 1 / (r^D p(y))

    Atzmon, Maron, Lipman 2018, "Point convolutional neural networks by extension operators",
    https://arxiv.org/abs/1803.10091
    """
    return basis.Gaussian(num_basis, dim, generator=generator), estimator.MonteCarlo(bandwidth)


@method
def PointwiseCNN(num_basis: int, dim: int, generator: Generator | None = None) -> Pair:
    r"""Boxes on a regular grid, averaged. The original has ``num_basis=27``: 3 boxes per axis.

    .. math:: b_i(\tau) = [\, i = \arg\min_j \|p_j - \tau\| \,], \quad q = 1 / |N(x)|

    Hua, Tran, Yeung 2018, "Pointwise convolutional neural networks", https://arxiv.org/abs/1712.05245
    """
    return basis.NearestPoint(points=grid(num_basis, dim, margin=0.5)), estimator.Average()


@method
def SPHConv(
    num_basis: int,
    dim: int,
    radial: int = 1,
    authors_azimuth: bool = False,
    generator: Generator | None = None,
) -> Pair:
    r"""Boxes in spherical coordinates, averaged. K = 16: 1 radial x 5 azimuth x 3 polar bins and the centre.

    .. math:: b_i(\tau) = [\, \tau \text{ lies in bin } i \,], \quad q = 1 / |N(x)|

    Other K - 1 are split into azimuth and polar bins as evenly as they can be, polar being the fewer.

    Lei, Akhtar, Mian 2019, "Octree guided CNN with spherical kernels for 3D point clouds",
    https://arxiv.org/abs/1903.00343
    """
    directions = (num_basis - 1) // max(radial, 1)  # which is refused below
    even = (p for p in range(1, directions + 1) if directions % p == 0 and p * p <= directions)
    polar = max(even, default=1)
    azimuth = directions // polar if dim == 3 else directions
    bins = basis.SphericalBins(radial, azimuth, polar, dim, authors_azimuth)
    if bins.size != num_basis:
        raise ValueError(f"{num_basis} bins are not 1 + {radial} shells of equal bins in {dim}D")
    return bins, estimator.Average()


@method
def KPConv(num_basis: int, dim: int, generator: Generator | None = None) -> Pair:
    r"""Hats around kernel points, summed.

    .. math:: b_i(\tau) = \max(1 - \|p_i - \tau\| / s, 0), \quad q = 1

    Thomas et al. 2019, "KPConv: Flexible and deformable convolution for point clouds",
    https://arxiv.org/abs/1904.08889
    """
    return basis.LinearCorrelation(num_basis, dim, generator=generator), estimator.Sum()


@method
def KPConvN(num_basis: int, dim: int, bandwidth: float = 0.2, generator: Generator | None = None) -> Pair:
    r"""Hats around kernel points, twice as wide as KPConv's, Monte Carlo integration.

    .. math:: b_i(\tau) = \max(1 - \|p_i - \tau\| / 2 s, 0), \quad q = 1 / (r^D p(y))

    The "KPConv" of the paper's main tables: Hermosilla, Schelling, Ritschel, Ropinski 2022,
    "Variance-aware weight initialization for point convolutional neural networks",
    https://arxiv.org/abs/2112.03777, appendix.
    """
    points = ball(num_basis, dim, generator)
    return basis.LinearCorrelation(points=points, width=2 * spacing(points)), estimator.MonteCarlo(bandwidth)


@method
def InterpCNN(num_basis: int, dim: int, generator: Generator | None = None) -> Pair:
    r"""Hats on a regular grid, as wide as its spacing, averaged. The original has ``num_basis=27``.

    .. math:: b_i(\tau) = \max(1 - \|p_i - \tau\| / s, 0), \quad q = 1 / |N(x)|

    Mao, Wang, Li 2019, "Interpolated convolutional networks for 3D point cloud understanding",
    https://arxiv.org/abs/1908.04512
    """
    return basis.LinearCorrelation(points=grid(num_basis, dim, margin=1.0)), estimator.Average()


@method
def ConvPoint(num_basis: int, dim: int, generator: Generator | None = None) -> Pair:
    r"""A network on the differences to learned kernel points, averaged.

    .. math:: b(\tau) = \mathrm{mlp}(\tau - p_1, \ldots, \tau - p_K), \quad q = 1 / |N(x)|

    Boulch 2020, "ConvPoint: Continuous convolutions for point cloud processing",
    https://arxiv.org/abs/1904.02375
    """
    return basis.MLPCorrelation(num_basis, dim, generator=generator), estimator.Average()


@method
def MCConv(num_basis: int, dim: int, bandwidth: float = 0.2, generator: Generator | None = None) -> Pair:
    r"""A network on the offset in units of the receptive field, Monte Carlo integration.

    .. math:: b_i(\tau) = \mathrm{lrelu}(a_i^T \tau + c_i), \quad q = 1 / (r^D p(y))

    Hermosilla et al. 2018, "Monte Carlo convolution for learning on non-uniformly sampled point
    clouds", https://arxiv.org/abs/1806.01759
    """
    return basis.MLP(num_basis, dim, slope=0.2, generator=generator), estimator.MonteCarlo(bandwidth)


@method
def PointConv(
    num_basis: int,
    dim: int,
    radius: float | None = None,
    batch_norm: bool = False,
    bandwidth: float = 0.2,
    generator: Generator | None = None,
) -> Pair:
    r"""A network on the offset as it is, and a network on the density.

    .. math:: b_i(\tau) = \mathrm{relu}(a_i^T r \tau + c_i), \quad
              q = \mathrm{mlp}(p(y)^{-1} / \max\nolimits_{y'} p(y')^{-1})

    Give it the nominal ``radius`` of its receptive field, unless ``batch_norm`` normalises inside both
    networks: else the map suits offsets of about 1.

    Wu, Qi, Li 2019, "PointConv: Deep convolutional networks on 3D point clouds",
    https://arxiv.org/abs/1811.07246
    """
    maps = basis.MLP(
        num_basis, dim, slope=0.0, scaled=False, batch_norm=batch_norm, radius=radius, generator=generator
    )
    return maps, estimator.LearnedDensity(bandwidth, batch_norm, generator)


@method
def FlexConv(num_basis: int | None = None, dim: int = 3, generator: Generator | None = None) -> Pair:
    r"""An affine function of the offset, summed. K is D + 1, whatever ``num_basis``: nothing else is allowed.

    .. math:: b(\tau) = (\tau, 1), \quad q = 1

    Groh, Wieschollek, Lensch 2018, "Flex-Convolution", https://arxiv.org/abs/1803.07289
    """
    if num_basis not in (None, dim + 1):
        raise ValueError(f"FlexConv has D + 1 = {dim + 1} basis functions, got num_basis={num_basis}")
    return basis.Dot(dim), estimator.Sum()


def resolve(
    method: str | Callable[..., PointConvolution], in_channels: int, out_channels: int, **kwargs: Any
) -> PointConvolution:
    """A convolution from the name of a method, or from any function that makes one."""
    if isinstance(method, str):
        method = Registry("method", METHODS).resolve(method)
    if not callable(method):
        raise TypeError(f"method must be a name or a function, got {type(method).__name__}")
    return method(in_channels, out_channels, **kwargs)
