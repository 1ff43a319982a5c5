"""Data sets: samples and batches, synthetic data, readers for public sets and for a user's own files."""

from pointvar.data.base import PointData
from pointvar.data.cache import Cache
from pointvar.data.files import BadFileError, read_points, write_ply
from pointvar.data.folder import Folder
from pointvar.data.modelnet import ModelNet
from pointvar.data.sample import Batch, Sample, collate
from pointvar.data.scannet import ScanNet
from pointvar.data.scanobjectnn import ScanObjectNN
from pointvar.data.synthetic import Shapes

__all__ = [
    "BadFileError",
    "Batch",
    "Cache",
    "Folder",
    "ModelNet",
    "PointData",
    "Sample",
    "ScanNet",
    "ScanObjectNN",
    "Shapes",
    "collate",
    "read_points",
    "write_ply",
]
