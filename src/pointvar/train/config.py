"""What a training run is: dataclasses that can be read from and written to YAML, with dotted overrides."""

from __future__ import annotations

from argparse import ArgumentError
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import jsonargparse
import yaml

from pointvar.data.names import DATASETS
from pointvar.init.names import INITS
from pointvar.limits import check_yaml
from pointvar.models.names import NETWORKS
from pointvar.nn.names import NORMS
from pointvar.recipes import RECIPES as RECIPES
from pointvar.registry import Registry


def one_of(registry: Registry[Any], default: str | None) -> Any:
    """A setting whose values are the names in a registry."""
    return field(default=default, metadata={"registry": registry})


def positive(default: float | None) -> Any:
    """A setting that must be more than 0, where it is given."""
    return field(default=default, metadata={"positive": True})


@dataclass
class DataConfig:
    """The data set, its augmentation, and its batches."""

    name: str = one_of(DATASETS, "shapes")
    """Name of the data set. Shapes and rooms are made on the spot and need no path."""
    path: str | None = None
    """Folder or file of the data set. The data set folder expects the subfolders train and test in it."""
    variant: str | None = None
    """Variant of scanobjectnn's files (null: OBJ), or number of modelnet's classes, 10 or 40 (null: 40)."""
    scenes: dict[str, str] | None = None
    """Files that list the scenes of scannet: {train: FILE, test: FILE}."""
    task: Literal["classification", "segmentation"] = "classification"
    """What the data set folder is for: classification has one label per cloud, segmentation one per point."""
    columns: list[str] = field(default_factory=list)
    """Columns of the data set folder that are input features, such as [colors]. None: the constant 1."""
    train_size: int | None = positive(None)
    """Number of training samples: made on the spot, or the first of the set. Null: all that there are."""
    test_size: int | None = positive(None)
    """Number of test samples: made on the spot, or the first of the set. Null: all that there are."""
    num_points: int | None = positive(None)
    """Points per cloud (of rooms: per room), drawn anew in each epoch. Null: all points."""
    poisson: float | None = positive(None)
    """Radius of a Poisson disk sampling that thins each cloud before num_points is drawn. Null: none."""
    normals: bool = False
    """Takes the normals as input features, if the data set has them. False: the constant 1."""
    box: bool = True
    """Centres each cloud and scales the longest side of its bounding box to [-1, 1], to classify."""
    up: Literal["x", "y", "z"] = "z"
    """Axis that points upwards. It is y in ScanObjectNN."""
    rotate: bool = True
    """Rotates each cloud at random about the up axis, in training and in voting."""
    scale: float = 0.1
    """Scales each axis at random by a factor between 1 - scale and 1 + scale."""
    mirror: bool = False
    """Mirrors each of the two level axes at random."""
    jitter: float = 0.0
    """Standard deviation of Gaussian noise that is added to the coordinates, in units of the data."""
    radius: float = positive(2.0)
    """Radius of the spheres in which a segmentation predicts, in units of the data."""
    context: float = 4.0
    """Radius of the sphere of points that a segmentation sees, in units of the data; at least radius."""
    crops: int | None = positive(None)
    """Spheres per epoch of a segmentation. Null: as many as there are scenes."""
    batch_size: int = positive(8)
    """Clouds per step and process."""
    drop_last: bool = False
    """Leaves out the last batch of an epoch if it is smaller than the others."""
    workers: int = 0
    """Number of processes that prepare batches. 0: the training process does it itself."""
    cache: bool = True
    """Keeps the data set in memory. Switch it off only if the set does not fit."""


@dataclass
class ModelConfig:
    """The network; null stands for the network's own default unless it says otherwise."""

    network: str = one_of(NETWORKS, "classifier")
    """Name of the network: the paper's classifier and U-Net, or PointConv's own networks."""
    method: str = "MCConv"
    """Point convolution of all layers, a name of pointvar.methods."""
    basis: str | None = None
    """Basis of all layers, a name of pointvar.basis. Together with estimator, it replaces method."""
    estimator: str | None = None
    """Estimator of all layers, a name of pointvar.estimator. Together with basis, it replaces method."""
    num_basis: int | None = None
    """Number of basis functions. Null: the method's own number."""
    channels: list[int] | None = None
    """Number of features at each level, from fine to coarse."""
    head: int | None = None
    """Number of hidden units in the head of a classifier."""
    radii: list[float] | None = None
    """Distance between points at each level (the radius of Poisson disk sampling), in units of the data."""
    reach: float | None = None
    """Radius of a receptive field, as a multiple of its level's entry in radii."""
    max_neighbors: int | None = 16
    """Largest number of neighbours of a point; more are thinned at random. Null: no limit."""
    norm: str = one_of(NORMS, "none")
    """Normalisation of the features after each convolution."""
    head_norm: str | None = one_of(NORMS, None)
    """Normalisation in the head of a classifier, where each cloud is one row. Null: the same as norm."""
    unit_response: bool = False
    """Divides each convolution by its response to a constant feature."""
    precondition: bool = False
    """Learns the weights of each convolution in coordinates in which its basis functions do not overlap."""
    orthonormal: bool = False
    """Deprecated: mixes the functions of each basis so that they are orthonormal. Use precondition."""
    dropout: float | None = None
    """Probability of dropping a feature before each convolution."""
    head_dropout: float | None = None
    """Probability of dropping a feature before each linear layer in the head of a classifier."""
    bias: bool | None = None
    """Learns a bias in the place of the norm, if norm is none."""
    first_reach: float | None = None
    """Reach of the U-Net's convolution from the input points to the first level. Null: the same as reach."""
    recompute: bool = False
    """Computes the U-Net's activations again in the backward pass, which needs less memory and more time."""


@dataclass
class InitConfig:
    """How the weights are drawn before the first step."""

    method: str = one_of(INITS, "direct")
    """Name of the initialisation. Direct, lsuv and data-dependent measure on training batches, transfer
    takes a table, and none leaves the weights as the network was made; the others look at no data."""
    layers: Literal["convolutions", "all"] = "convolutions"
    """Draws the weights of point convolutions alone, as in the paper, or of all layers of any library."""
    batches: int = positive(8)
    """Number of training batches to measure on."""
    table: str = "modelnet40"
    """Table for the method transfer: the name of a shipped table, or a file."""
    target: float = 1.0
    """Second moment that the output of each layer gets."""
    center: float | Literal["auto"] = 0.0
    """How much of what all points have in common is taken out of the weights by direct and lsuv, from 0 to 1,
    or auto: as much as the depth of the network allows."""


@dataclass
class OptimizerConfig:
    """The optimiser and its learning rate."""

    name: Literal["sgd", "adamw"] = "sgd"
    """Stochastic gradient descent with momentum (SGD), or AdamW."""
    rate: float = positive(0.005)
    """Learning rate: in the first epoch (milestones), or the largest (cosine, one-cycle)."""
    schedule: Literal["milestones", "cosine", "one-cycle"] = "milestones"
    """How the learning rate changes: by milestones, or with every step from a warm-up down to 0, along a
    cosine or as in torch's OneCycleLR."""
    milestones: list[int] = field(default_factory=list)
    """Epochs after which the learning rate is multiplied by gamma, if schedule is milestones."""
    gamma: float = 0.1
    """Factor on the learning rate at each milestone."""
    warmup: float = 0.1
    """Share of all steps in which the learning rate rises, if schedule is cosine or one-cycle."""
    momentum: float = 0.9
    """Momentum of SGD, or the first beta of AdamW."""
    weight_decay: float = 1e-4
    """Weight decay of SGD, or the decoupled one of AdamW. It applies to the weights of convolutions only."""
    clip_norm: float | None = positive(None)
    """Largest norm of the gradient of all parameters; a larger one is scaled down. Null: no limit."""
    agc: float | None = positive(None)
    """Adaptive gradient clipping: largest norm of a unit's gradient as a fraction of the norm of its
    weights; larger ones are scaled down. Null: no limit."""
    refresh: int | None = positive(25)
    """Steps after which preconditioned convolutions follow their basis, where it is learned. Null: never."""
    accumulate: int = positive(1)
    """Number of batches whose gradients are averaged for one step."""
    class_weights: bool = False
    """Weighs the loss of each class against its frequency in the training data."""


@dataclass
class Config:
    """A training run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    init: InitConfig = field(default_factory=InitConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    epochs: int = positive(30)
    """Number of passes over the training data."""
    evaluate_every: int = positive(1)
    """Epochs between evaluations on the test data. There is always one at the end."""
    votes: int = positive(1)
    """Number of augmented passes whose probabilities are summed in the final evaluation. 1: one pass that is
    not augmented."""
    seed: int = 0
    """Seed of everything random: weights, order of the data, augmentation, dropout."""
    threads: int | None = positive(None)
    """Threads of the training process. Null: as many as torch takes. The same number gives the same bits."""
    bf16: bool = False
    """Computes forward and backward pass in bfloat16; weights stay in float32."""
    output: str | None = None
    """Folder of the run. Null: nothing is written (the command line then makes a folder in runs)."""
    logger: Literal["tensorboard", "wandb", "mlflow", "none"] = "tensorboard"
    """Where the numbers of each epoch go besides metrics.jsonl, if the run has a folder."""
    checkpoint_steps: int | None = positive(None)
    """Optimiser steps between checkpoints, besides the one after every epoch. Null: no others."""
    accelerator: str = "auto"
    """Hardware to train on: cpu, gpu, or auto for what there is, as in Lightning's Trainer."""
    devices: int = 1
    """Number of processes per machine, each with one device."""
    nodes: int = 1
    """Number of machines."""

    def __post_init__(self) -> None:
        for name, setting, value in self._settings():
            if value is not None and "registry" in setting.metadata:
                setting.metadata["registry"].check(value)
            if value is not None and "positive" in setting.metadata and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        data = self.data
        if self.seed < 0 or data.workers < 0:
            raise ValueError(
                f"seed and data.workers must not be negative, got {self.seed} and {data.workers}"
            )
        if not data.context >= data.radius:
            given = f"got {data.context} and {data.radius}"
            raise ValueError(f"data.context must not be less than data.radius, {given}")
        if not (0 <= data.scale < 1 and data.jitter >= 0):
            given = f"got {data.scale} and {data.jitter}"
            raise ValueError(f"data.scale must be from 0 to below 1 and data.jitter not negative, {given}")
        if not 0 <= self.optimizer.warmup < 1:
            raise ValueError(f"optimizer.warmup must be from 0 to below 1, got {self.optimizer.warmup}")
        if (self.model.basis is None) != (self.model.estimator is None):
            raise ValueError("model.basis and model.estimator come together, or not at all")

    def _settings(self) -> Iterator[tuple[str, Field[Any], Any]]:
        """All settings: dotted name, field, value."""
        for top in fields(self):
            value = getattr(self, top.name)
            if not is_dataclass(value):
                yield top.name, top, value
                continue
            for setting in fields(value):
                yield f"{top.name}.{setting.name}", setting, getattr(value, setting.name)

    def to_yaml(self) -> str:
        """The run as YAML text, which ``load_config`` reads."""
        return yaml.safe_dump(asdict(self), sort_keys=False)


def load_config(*sources: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """A run from recipes and YAML files, the later ones over the earlier, and overrides over all.

    Args:
        sources: names of recipes (``"shapes"``, ``"norm-free"``, ...), YAML files, or nested dictionaries.
        overrides: as on the command line: ``["--data.batch_size", "2", "--optimizer.rate=0.01"]``.

    Example::

        config = load_config("scanobjectnn", "norm-free", overrides=["--data.path=scanobjectnn"])
    """
    parser, settings, where = _parser(), None, ""
    try:
        for source in sources:
            where = "" if isinstance(source, Mapping) else f"{source}: "
            given = _given(source)
            for section in ("data", "model", "init", "optimizer"):
                if isinstance(given.get(section), (bool, int, float, str, list)):
                    raise ValueError(f"{section} must hold settings, got {given[section]!r}")
            settings = parser.parse_object(given, settings)
        if overrides or settings is None:
            where = ""
            settings = parser.parse_args(list(overrides), settings)
        return Config(**vars(parser.instantiate(settings)))
    except (ArgumentError, ValueError, TypeError) as error:  # TypeError: a value in the place of a section
        raise ValueError(where + " ".join(str(error).split())) from error


def _given(source: str | Path | Mapping[str, Any]) -> Any:
    """The settings that a source has."""
    if isinstance(source, Mapping):
        return dict(source)
    if str(source) in RECIPES:
        return RECIPES[str(source)]
    if not Path(source).is_file():
        raise ValueError(f"neither a YAML file nor a recipe; recipes: {', '.join(RECIPES)}")
    try:
        check_yaml(Path(source).read_text("utf8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not text: {error}") from error
    return _parser().parse_path(str(source), defaults=False)


def add_settings(parser: jsonargparse.ArgumentParser) -> None:
    """Gives a parser an option per setting of a run, such as ``--data.batch_size``."""
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser.add_class_arguments(Config, as_group=False)
    helps = {action.dest: action for action in parser._actions}
    for name, setting, _ in Config()._settings():
        if "registry" in setting.metadata:
            helps[name].help = f"{helps[name].help} Known: {', '.join(setting.metadata['registry'])}."


@cache
def _parser() -> jsonargparse.ArgumentParser:
    parser = jsonargparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    add_settings(parser)
    return parser
