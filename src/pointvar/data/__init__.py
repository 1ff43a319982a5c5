"""Data sets: samples and batches, synthetic data, readers for public sets and for a user's own files."""

from pointvar.data.base import PointData
from pointvar.data.cache import Cache
from pointvar.data.crops import Crop, CropSampler, SphereCrops, cover, crop_sphere
from pointvar.data.files import BadFileError, read_points, write_ply
from pointvar.data.folder import Folder
from pointvar.data.modelnet import ModelNet
from pointvar.data.rooms import Rooms
from pointvar.data.sample import Batch, Sample, collate
from pointvar.data.scannet import ScanNet
from pointvar.data.scanobjectnn import ScanObjectNN
from pointvar.data.synthetic import Shapes
from pointvar.data.transforms import (
    Compose,
    Jitter,
    Mirror,
    NormalizeBox,
    NormalizeSphere,
    PoissonDisk,
    Rotate,
    Scale,
    Subset,
    Transform,
    Transformed,
)
from pointvar.data.weights import class_weights, count_labels, label_counts

__all__ = [
    "BadFileError",
    "Batch",
    "Cache",
    "Compose",
    "Crop",
    "CropSampler",
    "Folder",
    "Jitter",
    "Mirror",
    "ModelNet",
    "NormalizeBox",
    "NormalizeSphere",
    "PointData",
    "PoissonDisk",
    "Rooms",
    "Rotate",
    "Sample",
    "Scale",
    "ScanNet",
    "ScanObjectNN",
    "Shapes",
    "SphereCrops",
    "Subset",
    "Transform",
    "Transformed",
    "class_weights",
    "collate",
    "count_labels",
    "cover",
    "crop_sphere",
    "label_counts",
    "read_points",
    "write_ply",
]
