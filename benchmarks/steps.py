"""Training steps that benchmarks measure: networks, clouds, the parts of a step, and its limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import pointvar as pv
from pointvar.data import Batch, Sample, Shapes, collate, crop_sphere
from pointvar.data.rooms import Rooms
from pointvar.train import AdaptiveClipping, ClassificationModule, OptimizerConfig

PARTS = ["geometry", "forward", "backward", "clipping", "optimiser"]
CASES = ["small", "paper-2", "paper-16", "unet", "pyg"]
CLOUDS = 32  # of which each step takes others


class Step:
    """A training step: ``parts(number)`` runs it and pauses after each part, the same for the same number.

    Every step takes other clouds, if there are, and has a geometry of its own, as in training. An ``empty``
    step calls the same operators with next to nothing to compute: a few points, one channel.
    """

    def __init__(self, case: str, empty: bool = False) -> None:
        self.case = case
        self.batches = [collate([s[:8] if empty else s for s in samples]) for samples in _samples(case)]
        self.model = _model(case, empty)
        self.batch_size = len(self.batches[0])
        settings = OptimizerConfig("sgd", 1e-5, "milestones", agc=0.05)
        module = ClassificationModule(self.model, ["a", "b"], settings)
        self.optimizer = module.configure_optimizers()["optimizer"]
        self.clip = AdaptiveClipping(self.model, 0.05)
        self.network: nn.Module = self.model

    def _levels(self, number: int) -> tuple[Batch, pv.Hierarchy, Tensor]:
        batch = self.batches[number % len(self.batches)]
        random = torch.Generator().manual_seed(number)
        if batch.labels.shape[0] == batch.cloud.num_clouds:
            return batch, self.model.hierarchy(batch.cloud, generator=random), batch.labels % 15
        inner = (batch.labels >= 0).nonzero().squeeze(1)
        levels = self.model.hierarchy(batch.cloud, queries=batch.cloud[inner], generator=random)
        return batch, levels, batch.labels[inner] % 20

    def parts(self, number: int) -> Iterator[str]:
        batch, levels, labels = self._levels(number)
        yield "geometry"
        loss = nn.functional.cross_entropy(self.network(batch.features, levels), labels)
        yield "forward"
        loss.backward()
        yield "backward"
        self.clip()
        yield "clipping"
        self.optimizer.step()
        self.optimizer.zero_grad()
        yield "optimiser"

    def operations(self, numbers: range) -> float:
        """Of the forward pass: 2 E K C + 2 M K C O over all convolutions; the mean of some steps."""
        sizes = [size for number in numbers for size in self.sizes(number)]
        return sum(2 * e * kc + 2 * m * kc * o for e, m, kc, o in sizes) / len(numbers)

    @torch.no_grad()
    def sizes(self, number: int) -> list[tuple[int, int, int, int]]:
        """E, M, K C and O of each convolution in a step."""
        sizes = []

        def note(layer: Any, args: tuple[Any, ...]) -> None:
            hood, inputs = args[1], layer.basis.size * layer.in_channels
            sizes.append((hood.num_edges, hood.queries.num_points, inputs, layer.out_channels))

        layers = [m for m in self.model.modules() if isinstance(m, pv.PointConvolution)]
        handles = [layer.register_forward_pre_hook(note) for layer in layers]
        batch, levels, _ = self._levels(number)
        self.model(batch.features, levels)
        for handle in handles:
            handle.remove()
        return sizes

    def twin(self) -> Step:
        """The same step by the message passing and the pooling of PyTorch Geometric."""
        twin = Step(self.case)
        twin.network = PyGClassifier(twin.model)
        return twin


def _samples(case: str) -> list[list[Sample]]:
    if case == "unet":
        room = Rooms(1, num_points=120_000, floor=(5.0, 5.5))[0]
        return [[crop_sphere(room, room.points.mean(0), 2.0, 4.0).sample]]
    if case == "pyg":
        shapes, size = Shapes(CLOUDS, num_points=1024, partial=True), 4
    else:
        shapes, size = Shapes(CLOUDS, num_points=512), 16 if case == "paper-16" else 2
    return [[shapes[i] for i in range(begin, begin + size)] for begin in range(0, CLOUDS, size)]


def _model(case: str, empty: bool = False) -> Any:
    random = torch.Generator().manual_seed(0)
    inputs = _samples(case)[0][0].features.shape[1]
    if case == "unet":
        options = {"in_channels": inputs, "num_classes": 20, "generator": random}
        return pv.models.preset("scannet", **options).train()
    widths = (1, 1, 1, 1) if empty else (32, 64, 128, 128) if case == "small" else (128, 256, 512, 512)
    return pv.models.Classifier(
        inputs,
        15,
        "MCConv",
        channels=widths[:3],
        head=widths[3],
        unit_response=case != "pyg",
        precondition=False,
        generator=random,
    ).train()


class PyGClassifier(nn.Module):
    """The classifier by message passing; shares the parameters of ours."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.layers = nn.ModuleList([_pyg_layer(block.convolution) for block in model.blocks])

    def forward(self, features: Tensor, levels: pv.Hierarchy) -> Tensor:
        from torch_geometric.nn import global_mean_pool

        for level in range(len(levels)):
            features = features[levels.kept[level]]
            hood = levels.within(level)
            for number in (2 * level, 2 * level + 1):
                before = self.model.blocks[number].before
                if before is not None:
                    features = before(features, hood.support)
                features = self.layers[number](features, hood)
        cloud = levels.clouds[-1]
        return self.model.head(global_mean_pool(features, cloud.batch, cloud.num_clouds))


def _pyg_layer(convolution: Any) -> nn.Module:
    from torch_geometric.nn import MessagePassing

    class Layer(MessagePassing):  # type: ignore[misc, valid-type]
        """phi by messages of K C numbers, summed at the queries; then one linear map."""

        def __init__(self) -> None:
            super().__init__(aggr="add")
            self.convolution = convolution

        def forward(self, x: Tensor, hood: pv.Neighborhood) -> Tensor:
            basis = self.convolution.basis(hood.relative_positions(), hood.edge_radius())
            values = basis * self.convolution.estimator(hood)[:, None]
            edges = torch.stack([hood.indices, hood.rows])
            phi = self.propagate(edges, x=x, values=values, size=(len(x), hood.queries.num_points))
            return phi @ self.convolution.weight.flatten(0, 1)

        def message(self, x_j: Tensor, values: Tensor) -> Tensor:
            return (values[:, :, None] * x_j[:, None, :]).flatten(1)

    return Layer()
