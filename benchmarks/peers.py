"""What is convolved, and the same convolution written plainly in torch, as one would without pointvar.

Each peer takes a ``Problem`` and gives a function of features ``[N, C]`` and weights ``[K, C, O]``.
What does not depend on either and is no part of the basis (lists and matrices of neighbours, offsets,
weights of the estimator) is made beforehand, as it is for pointvar.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from clouds import Case, uniform
from harness import Task
from torch import Tensor

import pointvar as pv
from pointvar.basis import LinearCorrelation
from pointvar.estimator import density

PASSES = ("forward", "forward+backward")
Layer = Callable[[Tensor, Tensor], Tensor]


def neighbourhood(count: int, order: str = "unsorted") -> pv.Neighborhood:
    """Random points with all that a layer would compute once and keep."""
    case = Case("uniform", [uniform(count, torch.Generator().manual_seed(count))])
    points = case.points if order == "unsorted" else case.points[morton(case.points).argsort()]
    cloud = pv.PointCloud(points)
    hood = pv.ball_query(cloud, cloud, case.radius)
    hood.density = density(hood, 0.2)
    hood.transposed(), hood.relative_positions(), hood.edge_radius()
    return hood


def morton(points: Tensor) -> Tensor:
    """Place along the Z-shaped curve through cells of 1/1024."""
    cell = (points * 1024).long().clamp(0, 1023)
    code = torch.zeros(len(points), dtype=torch.int64)
    for bit in range(10):
        for axis in range(3):
            code |= ((cell[:, axis] >> bit) & 1) << (3 * bit + axis)
    return code


def layer(name: str, hood: pv.Neighborhood, c: int, o: int, **options: Any) -> pv.PointConvolution:
    options |= {"radius": float(hood.radius[0])} if name == "PointConv" else {}
    conv = pv.methods.resolve(name, c, o, generator=torch.Generator().manual_seed(1), **options)
    conv.estimator(hood)
    return conv


def inputs(hood: pv.Neighborhood, c: int, o: int) -> tuple[Tensor, Tensor]:
    """Features and the gradient of the result."""
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(hood.support.num_points, c, generator=generator).requires_grad_()
    return features, torch.randn(hood.queries.num_points, o, generator=generator)


def both_passes(call: Task, wanted: list[Tensor], gradient: Tensor) -> dict[str, Task]:
    def forward() -> Tensor:
        with torch.no_grad():
            return call()

    wanted = [tensor for tensor in wanted if tensor.requires_grad]
    return {PASSES[0]: forward, PASSES[1]: lambda: torch.autograd.grad(call(), wanted, gradient)}


def ours(conv: pv.PointConvolution, hood: pv.Neighborhood, x: Tensor, gradient: Tensor) -> dict[str, Task]:
    return both_passes(lambda: conv(x, hood), [x, *conv.parameters()], gradient)


def plain(peer: Layer, weight: Tensor, x: Tensor, gradient: Tensor) -> dict[str, Task]:
    return both_passes(lambda: peer(x, weight), [x, weight], gradient)


def agree(name: str, theirs: dict[str, Task], mine: dict[str, Task]) -> None:
    """Result, gradient of the features and of the weights; float32 sums in another order."""
    pairs = [
        (theirs[PASSES[0]](), mine[PASSES[0]]()),
        *zip(theirs[PASSES[1]](), mine[PASSES[1]](), strict=True),
    ]
    for a, b in pairs:
        if not torch.allclose(a, b, rtol=1e-3, atol=1e-3 * float(b.square().mean().sqrt())):
            raise AssertionError(f"{name}: results differ by up to {float((a - b).abs().max()):.2g}")


# Peers


@dataclass
class Problem:
    """A convolution by hats around kernel points, and where it is applied."""

    conv: pv.PointConvolution
    hood: pv.Neighborhood

    @property
    def basis(self) -> LinearCorrelation:
        assert isinstance(self.conv.basis, LinearCorrelation)
        return self.conv.basis

    def q(self) -> Tensor:
        with torch.no_grad():
            return self.conv.estimator(self.hood)

    def padded(self, values: Tensor, fill: float) -> Tensor:
        """Values of the edges ``[E, ...]`` as rows of equal length ``[M, n, ...]``."""
        hood = self.hood
        counts = hood.counts
        slot = torch.arange(hood.num_edges) - (counts.cumsum(0) - counts)[hood.rows]
        out = values.new_full((len(counts), int(counts.max()), *values.shape[1:]), fill)
        out[hood.rows, slot] = values
        return out


def naive(problem: Problem) -> Layer:
    """Gather, outer products per edge, index_add, one matrix product."""
    hood, basis, q = problem.hood, problem.basis, problem.q()
    offsets, radius, rows, indices = hood.relative_positions(), hood.edge_radius(), hood.rows, hood.indices
    rows, indices = rows.long(), indices.long()
    queries = hood.queries.num_points

    def layer(x: Tensor, weight: Tensor) -> Tensor:
        b = basis(offsets, radius) * q[:, None]
        edges = torch.einsum("ek,ec->ekc", b, x[indices])
        phi = x.new_zeros(queries, *edges.shape[1:]).index_add(0, rows, edges)
        return phi.flatten(1) @ weight.flatten(0, 1)

    return layer


def padded_matmul(problem: Problem) -> Layer:
    """Rows padded to equal length, a batched matrix product, one matrix product."""
    hood, basis = problem.hood, problem.basis
    neighbours = problem.padded(hood.indices.long(), 0)
    offsets, q = problem.padded(hood.relative_positions(), 0), problem.padded(problem.q(), 0)

    def layer(x: Tensor, weight: Tensor) -> Tensor:
        b = (1 - torch.cdist(offsets, basis.points) / basis.width).relu() * q[:, :, None]
        return (b.mT @ x[neighbours]).flatten(1) @ weight.flatten(0, 1)

    return layer


def kpconv_style(problem: Problem) -> Layer:
    """The arithmetic of KPConv's public PyTorch code, step by step; it knows sums only (q = 1)."""
    hood, basis = problem.hood, problem.basis
    radius = float(hood.radius[0])
    kernel, extent = basis.points * radius, basis.width * radius
    support, queries = hood.support.points, hood.queries.points
    neighbours = problem.padded(hood.indices.long(), len(support))  # the shadow point stands for nobody

    def layer(x: Tensor, weight: Tensor) -> Tensor:
        points = torch.cat([support, torch.full_like(support[:1], 1e6)])
        offsets = points[neighbours] - queries[:, None]
        squared = ((offsets[:, :, None] - kernel) ** 2).sum(3)  # through differences [M, n, K, D]
        influence = torch.clamp(1 - squared.sqrt() / extent, min=0.0).transpose(1, 2)
        x = torch.cat([x, torch.zeros_like(x[:1])])
        # That code prefers a gather on expanded tensors to x[neighbours].
        index = neighbours[:, :, None].expand(-1, -1, x.shape[1])
        near = x[:, None].expand(-1, neighbours.shape[1], -1).gather(0, index)
        weighted = torch.matmul(influence, near)
        return torch.matmul(weighted.permute(1, 0, 2), weight).sum(0)

    return layer


def message_passing(problem: Problem) -> Layer:
    """torch_geometric: a message [K * C] per edge, summed."""
    from torch_geometric.nn import MessagePassing

    hood, basis, q = problem.hood, problem.basis, problem.q()
    offsets, radius = hood.relative_positions(), hood.edge_radius()
    edges = torch.stack([hood.indices.long(), hood.rows.long()])
    size = (hood.support.num_points, hood.queries.num_points)

    class Projection(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr="add")

        def forward(self, x: Tensor, b: Tensor) -> Tensor:
            return self.propagate(edges, x=(x, None), b=b, size=size)

        def message(self, x_j: Tensor, b: Tensor) -> Tensor:
            return (b[:, :, None] * x_j[:, None]).flatten(1)

    projection = Projection()

    def layer(x: Tensor, weight: Tensor) -> Tensor:
        b = basis(offsets, radius) * q[:, None]
        return projection(x, b) @ weight.flatten(0, 1)

    return layer


KPCONV = "KPConv style"
NAIVE = "naive"
PEERS: dict[str, Callable[[Problem], Layer]] = {
    KPCONV: kpconv_style,
    "padded matmul": padded_matmul,
    NAIVE: naive,
    "torch_geometric": message_passing,
}
LARGE = (NAIVE, "torch_geometric")  # these store [E, K, C]


def summed(conv: pv.PointConvolution) -> pv.PointConvolution:
    """The same layer, but every neighbour counts 1: what KPConv's code computes."""
    twin = pv.PointConvolution(
        conv.in_channels, conv.out_channels, conv.basis, pv.estimator.Sum(), bias=False, method="KPConv"
    )
    twin.weight = conv.weight
    return twin


# Memory


def probe(side: str, points: int, channels: int) -> float:
    """Peak of the resident memory in MB during one forward and backward pass, less what is given back."""

    def prepare(count: int) -> tuple[Task, int]:
        hood = neighbourhood(count)
        conv = layer("KPConvN", hood, channels, channels, bias=False)
        x, gradient = inputs(hood, channels, channels)
        if side == "pointvar":
            task = ours(conv, hood, x, gradient)[PASSES[1]]
        else:
            task = plain(PEERS[side](Problem(conv, hood)), conv.weight, x, gradient)[PASSES[1]]
        return task, 4 * (gradient.numel() + x.numel() + conv.weight.numel())

    prepare(256)[0]()  # libraries and threads start here
    pv.empty_cache()
    task, given_back = prepare(points)
    Path("/proc/self/clear_refs").write_text("5")
    before = high_water()
    result = task()
    del result
    return (high_water() - before - given_back) / 1e6


def high_water() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
