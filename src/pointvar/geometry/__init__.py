"""The geometry of point clouds: neighbourhoods, sampling, density, levels."""

from pointvar.geometry.density import kernel_density
from pointvar.geometry.hierarchy import Hierarchy
from pointvar.geometry.neighborhood import Neighborhood, Transposed
from pointvar.geometry.sampling import VoxelGrid, farthest_points, poisson_disk, voxel_grid
from pointvar.geometry.search import ball_query, knn

__all__ = [
    "Hierarchy",
    "Neighborhood",
    "Transposed",
    "VoxelGrid",
    "ball_query",
    "farthest_points",
    "kernel_density",
    "knn",
    "poisson_disk",
    "voxel_grid",
]
