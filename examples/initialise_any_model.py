"""Weights for networks that know nothing of this library: a plain one of torch, a graph network of PyG."""

import warnings
from itertools import pairwise

import torch
from torch import nn

import pointvar as pv


def plain(depth: int = 20, width: int = 64) -> nn.Module:
    sizes = [3] + [width] * depth
    layers = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def graph(depth: int = 8, width: int = 64) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of its own use of torch.jit
        from torch_geometric.nn import Linear, SAGEConv

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(SAGEConv(width if i else 3, width) for i in range(depth))
            self.head = Linear(width, 10)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x, edge_index).relu()
            return self.head(x)

    return Graph()


def show(name: str, model: nn.Module, batch: object) -> None:
    """Before and after: the second moment of the outputs, from the first layer to the last."""
    for title in ("as it comes", "initialised"):
        report = pv.variance_report(model, batch)
        first, last = report.layers[0].variance, report.layers[-1].variance
        print(f"{name}, {title}: {report.verdict}; first layer {first:.3g}, last {last:.3g}")
        pv.variance_init(model, batch, generator=torch.Generator().manual_seed(0))  # one forward pass


def main() -> None:
    torch.manual_seed(0)
    cloud = pv.PointCloud(torch.rand(1000, 3))
    normals = nn.functional.normalize(torch.randn(1000, 3), dim=1)
    show("plain network", plain(), normals)
    try:
        network = graph()
    except ImportError:
        print("graph network: skipped, it needs pip install torch-geometric")
        return
    show("graph network", network, (normals, pv.knn(cloud, cloud, k=16).edge_index))


if __name__ == "__main__":
    main()
