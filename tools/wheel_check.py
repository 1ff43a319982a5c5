"""Whether an installed pointvar works: kernels as expected, a step of training, `pointvar doctor`.

python tools/wheel_check.py [native | reference]
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

expected = sys.argv[1] if len(sys.argv) > 1 else None
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    import torch

    import pointvar as pv

    info = pv.native_info()
assert "site-packages" in pv.__file__, pv.__file__
assert expected in (None, info["backend"]), info
if info["backend"] == "reference":
    assert any("plain torch is used instead" in str(warning.message) for warning in told)
else:
    assert Path(torch.__file__).parent in Path(info["openmp"]).parents, (
        f"two OpenMP runtimes: {info['openmp']}"
    )

generator = torch.manual_seed(0)
cloud = pv.PointCloud(torch.rand(200, 3, generator=generator), [120, 80])
features, target = torch.ones(200, 1), torch.tensor([0, 1])
model = pv.models.Classifier(1, 2, channels=(8, 8), head=8, radii=(0.2, 0.4), generator=generator)
levels = model.hierarchy(cloud, generator)
pv.variance_init(model, [(features, levels)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
model.eval()  # no dropout: every step must help
losses = []
for _ in range(3):
    loss = torch.nn.functional.cross_entropy(model(features, levels), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses

doctor = subprocess.run([sys.executable, "-m", "pointvar.cli", "doctor"], capture_output=True, text=True)
assert "Traceback" not in doctor.stderr, doctor.stderr
line = next(line for line in doctor.stdout.splitlines() if "native core" in line)
print(
    f"{info['backend']} kernels, loss {losses[0]:.4f} to {losses[-1]:.4f}; doctor: {' '.join(line.split())}"
)
