"""Every convolution of every network is reached by the initialisation, in the order in which it runs."""

import pytest
import torch
from network_cases import clouds, features_of, registered, seeded

import pointvar as pv

NETWORKS = {
    "plain": lambda: pv.models.PlainNet(4, 8, 2),
    "classifier": lambda: pv.models.Classifier(2, 4, channels=(8, 8, 8), head=8),
    "u-net": lambda: pv.models.SegmentationUNet(2, 4, channels=(8, 8, 8), radii=(0.1, 0.2, 0.4)),
    "checkpoints": lambda: pv.models.SegmentationUNet(
        2, 4, channels=(8, 8), radii=(0.1, 0.2), checkpoint=True
    ),
    "pointconv": lambda: pv.models.PointConvNet(2, 4, counts=(100, 50, 20, 10)),
    "pointconv classifier": lambda: pv.models.PointConvClassifier(2, 4, counts=(100, 50)),
}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_direct(make):
    cloud = clouds(150, 100)
    model = make()
    geometry = (
        pv.ball_query(cloud, cloud, 0.3)
        if isinstance(model, pv.models.PlainNet)
        else model.hierarchy(cloud, generator=seeded())
    )
    linears = [m.weight.clone() for _, m in registered(model, torch.nn.Linear)]
    report = pv.variance_init(model, [(features_of(cloud, 2), geometry)], layers=pv.PointConvolution)
    names = [name for name, _ in registered(model, pv.PointConvolution)]
    assert [layer.name for layer in report.layers] == names
    assert all(layer.second_moment > 0 and layer.calls == 1 for layer in report.layers)
    after = [m.weight for _, m in registered(model, torch.nn.Linear)]
    assert all(torch.equal(a, b) for a, b in zip(linears, after, strict=True))
