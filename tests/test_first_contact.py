"""A new process has a model, a first pass and first operators without the import of torch's compiler."""

import json
import subprocess
import sys

SLOW = ["sympy", "torch._dynamo", "torch.fx.experimental.symbolic_shapes", "torch._inductor"]
CONTACT = f"""
import json, sys
import torch
before = [name for name in {SLOW} if name in sys.modules]
import pointvar as pv
cloud = pv.PointCloud(torch.rand(200, 3), [120, 80])
for model in (
    pv.models.Classifier(1, 4, channels=(4, 8), head=8, radii=(0.1, 0.2)),
    pv.models.SegmentationUNet(1, 4, "PointConv", channels=(4, 8), radii=(0.1, 0.2), norm="batch"),
):
    levels = model.hierarchy(cloud)
    model(torch.ones(200, 1), levels).sum().backward()
    with torch.no_grad():
        model.eval()(torch.ones(200, 1), levels)
pv.ball_query(cloud, cloud, 0.1, max_neighbors=4)
pv.knn(cloud, cloud, 3)
pv.poisson_disk(cloud, 0.1)
pv.farthest_points(cloud, ratio=0.5)
moving = pv.PointCloud(cloud.points.clone().requires_grad_())
pv.kernel_density(moving, 0.1).sum().backward()
assert moving.points.grad.abs().sum() > 0
after = [name for name in {SLOW} if name in sys.modules]
print(json.dumps([before, after]))
"""


def test_nothing_slow_is_imported_before_somebody_compiles() -> None:
    run = subprocess.run([sys.executable, "-c", CONTACT], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    before, after = json.loads(run.stdout)
    assert after == before
