"""Training with Lightning: from a configuration, or with your own trainer and the callback `VarianceInit`."""

try:
    import lightning.pytorch as _lightning  # noqa: F401
except ImportError as error:
    raise ImportError("training needs lightning: pip install 'pointvar[train]'") from error

from pointvar.train.clipping import AdaptiveClipping
from pointvar.train.config import (
    Config,
    DataConfig,
    InitConfig,
    ModelConfig,
    OptimizerConfig,
    load_config,
)
from pointvar.train.divergence import DivergedError
from pointvar.train.fit import Result, fit
from pointvar.train.initialise import VarianceInit
from pointvar.train.loader import Loader, Prepared
from pointvar.train.metrics import Metrics
from pointvar.train.module import ClassificationModule, SegmentationModule
from pointvar.train.recipes import RECIPES
from pointvar.train.sources import Data, load_data
from pointvar.train.voting import class_probabilities, evaluate, predict_scene

__all__ = [
    "RECIPES",
    "AdaptiveClipping",
    "ClassificationModule",
    "Config",
    "Data",
    "DataConfig",
    "DivergedError",
    "InitConfig",
    "Loader",
    "Metrics",
    "ModelConfig",
    "OptimizerConfig",
    "Prepared",
    "Result",
    "SegmentationModule",
    "VarianceInit",
    "class_probabilities",
    "evaluate",
    "fit",
    "load_config",
    "load_data",
    "predict_scene",
]
