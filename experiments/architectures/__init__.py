"""Public networks for shapes, at their published structure and small widths.

Each takes points ``[B, N, 3]`` and gives scores ``[B, classes]``; a function that its constructor is given
makes all its norms, see ``NORMS``.
"""

from experiments.architectures.dgcnn import DGCNN
from experiments.architectures.parts import NORMS, Norm
from experiments.architectures.point_transformer import PointTransformer
from experiments.architectures.pointmlp import PointMLP
from experiments.architectures.pointnet import PointNet
from experiments.architectures.pointnet2 import PointNet2
from experiments.architectures.pointnext import PointNeXt
from experiments.architectures.randlanet import RandLANet

__all__ = ["ARCHITECTURES", "NORMS", "Norm"]

ARCHITECTURES = {
    "PointNet": PointNet,
    "PointNet++": PointNet2,
    "DGCNN": DGCNN,
    "PointMLP": PointMLP,
    "PointNeXt": PointNeXt,
    "RandLA-Net": RandLANet,
    "Point Transformer": PointTransformer,
}
"""Name -> network ``(classes, norm=batch_norm, width=)``."""
