"""pointvar: point convolutions as basis x estimator, and weights that keep the variance constant."""

from pointvar import basis, diagnose, estimator, init, kernel_points, methods, models, nn, testing
from pointvar.basis import Basis
from pointvar.cloud import PointCloud
from pointvar.convolution import PointConvolution
from pointvar.diagnose import variance_report
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
from pointvar.init import (
    authors_init,
    channel_init,
    closed_form_init,
    data_dependent_init,
    lsuv_init,
    register_layer,
    standard_init,
    transfer_init,
    variance_init,
    xavier_init,
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
from pointvar.models import load, save
from pointvar.ops.native import empty_cache
from pointvar.ops.native import info as native_info
from pointvar.orthonormal import Orthonormal, orthonormalise

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
    "Orthonormal",
    "PointCloud",
    "PointConv",
    "PointConvolution",
    "PointwiseCNN",
    "SPHConv",
    "VoxelGrid",
    "authors_init",
    "ball_query",
    "basis",
    "channel_init",
    "closed_form_init",
    "data_dependent_init",
    "diagnose",
    "empty_cache",
    "estimator",
    "farthest_points",
    "init",
    "kernel_density",
    "kernel_points",
    "knn",
    "load",
    "lsuv_init",
    "methods",
    "models",
    "native_info",
    "nn",
    "orthonormalise",
    "poisson_disk",
    "register_layer",
    "save",
    "standard_init",
    "testing",
    "transfer_init",
    "variance_init",
    "variance_report",
    "voxel_grid",
    "xavier_init",
]
