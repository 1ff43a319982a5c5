"""pointvar: point convolutions as basis x estimator, and weights that keep the variance constant."""

from pointvar.cloud import PointCloud
from pointvar.geometry import (
    Hierarchy,
    Neighborhood,
    VoxelGrid,
    ball_query,
    farthest_points,
    kernel_density,
    knn,
    poisson_disk,
    voxel_grid,
)
from pointvar.ops.native import empty_cache
from pointvar.ops.native import info as native_info

__version__ = "0.1.0.dev0"

__all__ = [
    "Hierarchy",
    "Neighborhood",
    "PointCloud",
    "VoxelGrid",
    "ball_query",
    "empty_cache",
    "farthest_points",
    "kernel_density",
    "knn",
    "native_info",
    "poisson_disk",
    "voxel_grid",
]
