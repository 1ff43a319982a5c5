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

from pointvar.data.names import DATASETS, GROUND
from pointvar.init.names import INITS
from pointvar.limits import check_yaml
from pointvar.models.names import NETWORKS
from pointvar.nn.names import NORMS
from pointvar.recipes import RECIPES as RECIPES
from pointvar.registry import Registry, did_you_mean, explained

NORM_FREE = RECIPES["norm-free"]
"""What a run is unless it is told otherwise; the recipe ``published`` gives the paper's."""
ALIASES = {"optimizer.lr": "optimizer.rate", "optimizer.learning_rate": "optimizer.rate"}
"""Other names of settings, as they are called elsewhere."""
NEWER = {"early_stopping"}
"""Settings of a run, in no section, that files of earlier versions do not have."""


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
    """Name of the data set. Shapes and rooms are generated and need no path."""
    path: str | None = None
    """Folder or file of the data set. The data set named folder needs the subfolders train and test in it,
    unless validation is set."""
    variant: str | None = None
    """Variant of the files of scanobjectnn (null: OBJ), or number of classes of modelnet, 10 or 40 (null:
    40)."""
    scenes: dict[str, str] | None = None
    """Files that list the scenes of scannet: {train: FILE, test: FILE}."""
    task: Literal["classification", "segmentation"] = "classification"
    """Task of the data set folder: classification has one label per cloud, segmentation one per point."""
    features: list[str] | None = None
    """Columns of the data set folder that are input features, such as [one, colors, intensity, height]: one
    is the constant 1, height is above the ground. They are scaled by their median and spread in the training
    data. Null: those of columns."""
    columns: list[str] = field(default_factory=list)
    """Columns of the data set folder that are input features as they are, without scaling. Empty: the
    constant 1."""
    ground: float = positive(GROUND)
    """Side of the window in which the lowest points are the ground for the feature height, in units of the
    data. It should be larger than the largest building."""
    classes: list[str] | dict[int, str] | None = None
    """Classes of the data set folder. Classification: names of the folders. Segmentation: names of the labels
    0, 1, ..., or {label: name}, where labels that are not named are ignored. Null: all that are found."""
    ignore: list[int | str] = field(default_factory=list)
    """Labels or names of classes of the data set folder that are ignored: they are neither learned nor
    evaluated."""
    label: str = "label"
    """Column of the labels of a segmentation in the data set folder."""
    errors: Literal["raise", "skip"] = "raise"
    """What to do with a file of the data set folder that cannot be used: raise an error, or skip it with a
    warning."""
    validation: float | list[str] | dict[str, list[float]] | None = None
    """Part of the training data by which the best network is chosen: a share such as 0.1, a list of names or
    patterns of files, or a region of the scenes, {min: [x, y], max: [x, y]}. The test data are then used
    once, at the end, and the data set folder needs no subfolders. Null: no such part, the last network is
    kept."""
    train_size: int | None = positive(None)
    """Number of training samples: that many are generated, or the first of the set are taken. Null: all."""
    test_size: int | None = positive(None)
    """Number of test samples: that many are generated, or the first of the set are taken. Null: all."""
    num_points: int | None = positive(None)
    """Points per cloud (in rooms: per room), drawn anew in each epoch. Null: all points."""
    poisson: float | None = positive(None)
    """Radius of a Poisson disk sampling that thins each cloud before num_points are drawn. Null: no
    thinning."""
    normals: bool = False
    """Uses the normals as input features, if the data set has them. False: the constant 1."""
    box: bool = True
    """Centres each cloud and scales the longest side of its bounding box to [-1, 1] (classification only)."""
    up: Literal["x", "y", "z"] = "z"
    """Axis that points upwards. It is y in ScanObjectNN."""
    rotate: bool = True
    """Rotates each cloud at random about the up axis, in training and in voting."""
    scale: float = 0.1
    """Scales each axis at random by a factor between 1 - scale and 1 + scale, in training and in voting."""
    mirror: bool = False
    """Mirrors each of the two horizontal axes at random, in training and in voting."""
    jitter: float = 0.0
    """Standard deviation of the Gaussian noise on the coordinates, in units of the data. 0: no noise."""
    radius: float = positive(2.0)
    """Radius of the spheres that a segmentation predicts, in units of the data."""
    context: float = 4.0
    """Radius of the spheres that a segmentation takes as input, in units of the data. At least radius."""
    crops: int | None = positive(None)
    """Number of spheres per epoch of a segmentation. Null: the number of scenes."""
    batch_size: int = positive(8)
    """Number of clouds per batch, in each process."""
    drop_last: bool = False
    """Skips the last batch of an epoch if it is smaller than the others."""
    workers: int = 0
    """Number of processes that prepare batches. 0: the training process prepares them itself."""
    cache: bool = True
    """Keeps the data set in memory. Switch it off if the data set does not fit."""


@dataclass
class ModelConfig:
    """The network. Null means the default of the network, unless the setting says otherwise."""

    network: str = one_of(NETWORKS, "classifier")
    """Name of the network: the paper's classifier and U-Net, or PointConv's own networks."""
    method: str = "MCConv"
    """Point convolution of all layers: a name in pointvar.methods."""
    basis: str | None = None
    """Basis of all layers: a name in pointvar.basis. Together with estimator it replaces method."""
    estimator: str | None = None
    """Estimator of all layers: a name in pointvar.estimator. Together with basis it replaces method."""
    num_basis: int | None = None
    """Number of basis functions. Null: the published number of the method."""
    channels: list[int] | None = None
    """Number of features at each level, from the finest to the coarsest."""
    head: int | None = None
    """Number of hidden units in the head of a classifier."""
    radii: list[float] | None = None
    """Distance between points at each level (the radius of Poisson disk sampling), in units of the data."""
    reach: float | None = None
    """Radius of the receptive field at each level, as a multiple of the entry in radii."""
    max_neighbors: int | None = 16
    """Largest number of neighbours of a point. If there are more, a random subset is kept. Null: no limit."""
    norm: str = one_of(NORMS, NORM_FREE["model"]["norm"])
    """Normalisation of the features before each activation."""
    head_norm: str | None = one_of(NORMS, None)
    """Normalisation in the head of a classifier, where each cloud is one row. Null: the same as norm."""
    unit_response: bool = NORM_FREE["model"]["unit_response"]
    """Divides each convolution by its response to a constant feature, so that its scale does not depend on
    the number and density of neighbours. Recommended for networks without a norm."""
    precondition: bool = NORM_FREE["model"]["precondition"]
    """Learns the weights of each convolution in coordinates in which its basis functions do not overlap, so
    that a step along one does not undo a step along another. The layer computes the same function."""
    orthonormal: bool = False
    """Deprecated, use precondition. Mixes the functions of each basis so that they are orthonormal."""
    dropout: float | None = None
    """Probability of dropping a feature before each convolution."""
    head_dropout: float | None = None
    """Probability of dropping a feature before each linear layer in the head of a classifier."""
    bias: bool | None = None
    """Learns a bias in place of the norm, if norm is none."""
    first_reach: float | None = None
    """Reach of the first convolution of the U-Net, from the input points to the first level. Null: reach."""
    recompute: bool = False
    """Computes the activations of the U-Net again in the backward pass: needs less memory and more time."""


@dataclass
class InitConfig:
    """How the weights are drawn before the first step."""

    method: str = one_of(INITS, NORM_FREE["init"]["method"])
    """Name of the initialisation. Direct, lsuv and data-dependent measure on training batches, transfer reads
    a table, and none keeps the weights that the network starts with. The others use neither data nor
    tables."""
    layers: Literal["convolutions", "all"] = "convolutions"
    """Layers whose weights are drawn: only point convolutions, as in the paper, or all layers of any
    library."""
    batches: int = positive(8)
    """Number of training batches that the initialisation measures on."""
    table: str = "modelnet40"
    """Table for the initialisation transfer: the name of a built-in table, or a file."""
    target: float = 1.0
    """Second moment of the output of each layer after the initialisation."""
    center: float | Literal["auto"] = 0.0
    """Strength, from 0 to 1, with which direct and lsuv remove from the weights what all points have in
    common. Auto: as much as the depth of the network allows. 0: nothing, as in the paper."""


@dataclass
class OptimizerConfig:
    """The optimiser and its learning rate."""

    name: Literal["sgd", "adamw", "muon"] = NORM_FREE["optimizer"]["name"]
    """Name of the optimiser: stochastic gradient descent with momentum (SGD), AdamW, or Muon for all matrices
    (a convolution's weights are one) with AdamW for all other parameters. Muon needs torch 2.9."""
    rate: float = positive(NORM_FREE["optimizer"]["rate"])
    """Learning rate: that of the first epoch (schedule milestones), or the largest (cosine, one-cycle).
    optimizer.lr is the same."""
    schedule: Literal["milestones", "cosine", "one-cycle"] = NORM_FREE["optimizer"]["schedule"]
    """How the learning rate changes. Milestones: in steps between epochs. Cosine: it rises during a warm-up
    and falls to 0 along a cosine. One-cycle: as in torch's OneCycleLR."""
    milestones: list[int] = field(default_factory=list)
    """Epochs after which the learning rate is multiplied by gamma (schedule milestones)."""
    gamma: float = 0.1
    """Factor on the learning rate at each milestone."""
    warmup: float = NORM_FREE["optimizer"]["warmup"]
    """Share of all steps during which the learning rate rises (schedules cosine and one-cycle)."""
    momentum: float = 0.9
    """Momentum of SGD and Muon, or the first beta of AdamW."""
    weight_decay: float = 1e-4
    """Weight decay of SGD, or decoupled weight decay of AdamW and Muon. It applies only to weights of
    convolutions."""
    clip_norm: float | None = positive(None)
    """Largest norm of the gradient of all parameters together. Larger ones are scaled down. Null: no
    limit."""
    agc: float | None = positive(NORM_FREE["optimizer"]["agc"])
    """Adaptive gradient clipping (AGC): largest norm of the gradient of an output channel, as a fraction of
    the norm of its weights. Larger ones are scaled down. Null: no limit."""
    refresh: int | None = positive(25)
    """Steps between updates of the preconditioning of convolutions with a learned basis. Null: no updates."""
    accumulate: int = positive(1)
    """Number of batches whose gradients are averaged for one step of the optimiser."""
    class_weights: bool = False
    """Gives rare classes a larger weight in the loss, from their frequency in the training data."""


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
    """Epochs between evaluations on the part for validation (data.validation), or else on the test data.
    There is always one at the end."""
    early_stopping: int | None = positive(None)
    """Number of evaluations without a better network after which the training ends. It needs data.validation.
    Null: all epochs are trained."""
    votes: int = positive(1)
    """Number of augmented passes whose probabilities are summed in the final evaluation. 1: one pass without
    augmentation."""
    seed: int = 0
    """Seed of everything random: weights, order of the data, augmentation, dropout."""
    threads: int | None = positive(None)
    """Number of threads of the training process. Null: the default of torch. A run gives the same bits only
    with the same number."""
    bf16: bool = False
    """Computes the forward and backward pass in bfloat16. Weights stay in float32."""
    output: str | None = None
    """Folder of the run. Null: nothing is written in Python, and pointvar train makes a folder in runs."""
    logger: Literal["tensorboard", "wandb", "mlflow", "none"] = "tensorboard"
    """Logger that gets the numbers of each epoch, besides metrics.jsonl, if the run has a folder."""
    checkpoint_steps: int | None = positive(None)
    """Steps of the optimiser between checkpoints, in addition to one after every epoch. Null: none in
    addition."""
    accelerator: str = "auto"
    """Hardware to train on, as in Lightning's Trainer: cpu, gpu, or auto for the best that is available."""
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
        if data.features is not None and data.columns:
            raise ValueError("give data.features (scaled) or data.columns (as they are), not both")
        if data.features is not None and "height" in data.features and data.up != "z":
            raise ValueError(f"the feature height is along z, data.up is {data.up}")
        _check_validation(data.validation)
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


def _check_validation(validation: Any) -> None:
    if isinstance(validation, dict):
        low, high = validation.get("min", []), validation.get("max", [])
        if validation.keys() != {"min", "max"} or len(low) != len(high) or len(low) not in (2, 3):
            raise ValueError(f"a region for validation is {{min: [x, y], max: [x, y]}}, got {validation}")
        if not all(a < b for a, b in zip(low, high, strict=True)):
            raise ValueError(
                f"data.validation: min must be less than max in each coordinate, got {validation}"
            )
    elif isinstance(validation, (int, float)) and not 0 < validation < 1:
        raise ValueError(f"data.validation must be a share between 0 and 1, got {validation}")
    elif isinstance(validation, list) and not validation:
        raise ValueError("data.validation must name at least one file, got none")


def load_config(*sources: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """A run from recipes and YAML files, the later ones over the earlier, and overrides over all.

    Args:
        sources: names of recipes (``"shapes"``, ``"published"``, ...), YAML files, or nested dictionaries.
        overrides: as on the command line: ``["--data.batch_size", "2", "--optimizer.rate=0.01"]``.

    Example::

        config = load_config("scanobjectnn", "published", overrides=["--data.path=scanobjectnn"])
    """
    parser, settings, where = _parser(), None, ""
    try:
        for source in sources:
            where = "" if isinstance(source, Mapping) else f"{source}: "
            given = _given(source)
            for section in ("data", "model", "init", "optimizer"):
                if isinstance(given.get(section), (bool, int, float, str, list)):
                    raise ValueError(f"{section} must hold settings, got {given[section]!r}")
            if all(name in given for name in {setting.name for setting in fields(Config)} - NEWER):
                # A whole run, written by ``to_yaml``: what it does not name is newer than it, and was off.
                settings = parser.parse_object(RECIPES["published"], settings)
            settings = parser.parse_object(given, settings)
        if overrides or settings is None:
            where = ""
            settings = parser.parse_args(list(overrides), settings)
        return Config(**vars(parser.instantiate(settings)))
    except (ArgumentError, ValueError, TypeError) as error:  # TypeError: a value in the place of a section
        raise ValueError(where + explained(str(error), parser._option_string_actions)) from error


def _given(source: str | Path | Mapping[str, Any]) -> Any:
    """The settings that a source has."""
    if isinstance(source, Mapping):
        return _renamed(source)
    if str(source) in RECIPES:
        return RECIPES[str(source)]
    if not Path(source).is_file():
        hint = did_you_mean(str(source), RECIPES)
        raise ValueError(f"neither a YAML file nor a recipe{hint}; recipes: {', '.join(RECIPES)}")
    try:
        text = Path(source).read_text("utf8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not text: {error}") from error
    check_yaml(text)
    try:
        given = jsonargparse.get_loader("yaml")(text)
    except yaml.YAMLError as error:
        raise ValueError(f"Problems parsing config: {error}") from error
    if not isinstance(given, Mapping):
        raise ValueError(f"Unexpected config: {given}")
    return _parser().parse_object(_renamed(given), defaults=False)


def _renamed(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their own names."""
    result = dict(given)
    for alias, name in ALIASES.items():
        (section, other), inner = alias.split("."), name.split(".")[1]
        if isinstance(result.get(section), Mapping) and other in result[section]:
            result[section] = {inner if key == other else key: v for key, v in result[section].items()}
    return result


def add_settings(parser: jsonargparse.ArgumentParser) -> None:
    """Gives a parser an option per setting of a run, such as ``--data.batch_size``."""
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser.add_class_arguments(Config, as_group=False)
    helps = {action.dest: action for action in parser._actions}
    for name, setting, _ in Config()._settings():
        if "registry" in setting.metadata:
            helps[name].help = f"{helps[name].help} Known: {', '.join(setting.metadata['registry'])}."
    for alias, name in ALIASES.items():
        parser._option_string_actions[f"--{alias}"] = helps[name]


@cache
def _parser() -> jsonargparse.ArgumentParser:
    parser = jsonargparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    add_settings(parser)
    return parser
