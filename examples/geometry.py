"""A point cloud in one picture: its density, its levels, and what one point sees at each of them."""

import argparse
import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import LinearSegmentedColormap, LogNorm

import pointvar as pv

VIEW = torch.tensor([[0.83, 0.56, 0.0], [-0.29, 0.43, 0.855], [0.48, -0.71, 0.52]])  # right, up, towards us
DEPTH = LinearSegmentedColormap.from_list("depth", ["#dfe6ec", "#93aabf", "#3d5a76"])


def torus_on_ground(count: int, generator: torch.Generator) -> torch.Tensor:
    """A torus that lies on a plane: dense near a scanner in front of it, thin far away."""
    u, v = 2 * math.pi * torch.rand(2, 8 * count, generator=generator)
    ring = 1 + 0.42 * v.cos()
    torus = torch.stack([ring * u.cos(), ring * u.sin(), 0.42 * (1 + v.sin())], 1)
    plane = torch.stack([0.6 * (u - math.pi), 0.6 * (v - math.pi), 0 * u], 1)
    points = torch.where(torch.rand(len(u), 1, generator=generator) < 0.6, torus, plane)
    chance = (points - torch.tensor([1.6, -1.6, 1.0])).norm(dim=1) ** -3
    return points[torch.multinomial(chance, count, generator=generator)]


def draw(panel: plt.Axes, points: torch.Tensor, values: torch.Tensor, title: str, **style: object) -> object:
    right, up, depth = VIEW @ points.T
    order = depth.argsort()  # what is in front is painted last
    panel.set(xlim=(-2.7, 2.7), ylim=(-1.6, 1.4), aspect="equal", title=title)
    panel.axis("off")
    return panel.scatter(right[order], up[order], c=values[order], linewidths=0, **style)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--output", type=Path, default=Path("demo/geometry.png"))
output = parser.parse_args().output
generator = torch.Generator().manual_seed(0)
cloud = pv.PointCloud(torus_on_ground(24_000, generator))
density = pv.kernel_density(cloud, bandwidth=0.05)
levels = pv.Hierarchy(cloud, radii=[0.04, 0.08, 0.16], generator=generator)
print(pv.native_info(), levels, sep="\n")

figure, panels = plt.subplots(2, 2, figsize=(9.6, 5.7), layout="constrained")
dots = draw(panels[0, 0], cloud.points, density, f"input: {len(cloud):,} points", s=2, norm=LogNorm())
bar = panels[0, 0].inset_axes([0.0, 0.16, 0.28, 0.03])
figure.colorbar(dots, cax=bar, orientation="horizontal", label="points per unit volume")
for i, (panel, level) in enumerate(zip(panels.flat[1:], levels.clouds, strict=True)):
    hood = levels.within(i)
    x = (level.points - torch.tensor([0.92, -0.92, 0.72])).norm(dim=1).argmin()
    seen = hood.indices[hood.rows == x]
    right, up, depth = VIEW @ level.points.T
    draw(panel, level.points, depth, f"level {i}: {len(level):,} points", s=4 * 2**i, cmap=DEPTH)
    panel.scatter(right[seen], up[seen], c="#e4572e", s=7 * 2**i, linewidths=0)
    panel.add_patch(plt.Circle((right[x], up[x]), hood.radius[x], fill=False, ec="#e4572e"))
    print(f"level {i}: {hood}; the marked point sees {len(seen)}")
output.parent.mkdir(parents=True, exist_ok=True)
figure.savefig(output, dpi=110)
print(f"picture: {output}")
