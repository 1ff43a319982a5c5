"""Networks: the paper's classifier and U-Net, PointConv's own, and a plain one of any depth."""

from pointvar.models.classifier import Classifier
from pointvar.models.convolutions import Method
from pointvar.models.files import load, read_notes, save
from pointvar.models.plain import PlainNet
from pointvar.models.pointconv import PointConvClassifier, PointConvNet
from pointvar.models.presets import PRESETS, preset
from pointvar.models.unet import SegmentationUNet

__all__ = [
    "PRESETS",
    "Classifier",
    "Method",
    "PlainNet",
    "PointConvClassifier",
    "PointConvNet",
    "SegmentationUNet",
    "load",
    "preset",
    "read_notes",
    "save",
]
