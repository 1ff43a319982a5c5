"""Small models and inputs for the tests of the initialisation."""

import torch
from convolution_cases import seeded
from torch import nn

import pointvar as pv


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed))


def moment(tensor):
    return float(tensor.detach().double().square().mean())


def mlp(depth=3, width=16, **options):
    layers = [nn.Linear(4 if i == 0 else width, width, **options) for i in range(depth)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))


class Wired(nn.Module):
    """Layers by name, in order of registration, and how a call goes through them."""

    def __init__(self, call, **layers):
        super().__init__()
        self.call = call
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *inputs):
        return self.call(self, *inputs)


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(weights(a), weights(b), strict=True))


def cloud_batch(radius=0.35, points=120, channels=4, seed=0, cap=None):
    cloud = pv.PointCloud(torch.rand(points, 3, generator=seeded(seed)), [points // 2] * 2)
    hood = pv.ball_query(cloud, cloud, radius, max_neighbors=cap, generator=seeded(seed))
    return noise(points, channels, seed=seed), hood
