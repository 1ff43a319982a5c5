"""pointvar: point convolutions as basis x estimator, and weights that keep the variance constant."""

from pointvar import basis, estimator, kernel_points, methods, models, nn
from pointvar.basis import Basis
from pointvar.cloud import PointCloud
from pointvar.convolution import PointConvolution
from pointvar.estimator import Estimator
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
from pointvar.methods import (
    PCCNN,
    ConvPoint,
    FlexConv,
    InterpCNN,
    KPConv,
    KPConvN,
    MCConv,
    PointConv,
    PointwiseCNN,
    SPHConv,
)
from pointvar.ops.native import empty_cache
from pointvar.ops.native import info as native_info

__version__ = "0.1.0.dev0"

__all__ = [
    "PCCNN",
    "Basis",
    "ConvPoint",
    "Estimator",
    "FlexConv",
    "Hierarchy",
    "InterpCNN",
    "KPConv",
    "KPConvN",
    "MCConv",
    "Neighborhood",
    "PointCloud",
    "PointConv",
    "PointConvolution",
    "PointwiseCNN",
    "SPHConv",
    "VoxelGrid",
    "ball_query",
    "basis",
    "empty_cache",
    "estimator",
    "farthest_points",
    "kernel_density",
    "kernel_points",
    "knn",
    "methods",
    "models",
    "native_info",
    "nn",
    "poisson_disk",
    "voxel_grid",
]
