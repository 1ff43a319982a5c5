"""What a training run is: dataclasses that can be read from and written to YAML, with dotted overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pointvar.train.recipes import RECIPES


@dataclass
class DataConfig:
    """Which data, and how it is fed."""

    name: Literal["shapes", "rooms", "modelnet", "scanobjectnn", "scannet", "folder", "npz"] = "shapes"
    """The data set; shapes and rooms are made on the spot and need no path."""
    path: str | None = None
    """Where the files of the data set are; of folder: a folder with folders train and test."""
    variant: str | None = None
    """Of scanobjectnn: the variant of the files; of modelnet: 10 or 40 classes."""
    scenes: dict[str, str] | None = None
    """Of scannet: the lists of scenes, {train: ..., test: ...}."""
    task: Literal["classification", "segmentation"] = "classification"
    """Of folder: a label per cloud, or one per point."""
    columns: list[str] = field(default_factory=list)
    """Of folder: the columns that are the features; none: the constant 1."""
    train_size: int | None = None
    """So many training samples: how many are made, or the first so many of a set; null: all there are."""
    test_size: int | None = None
    """So many test samples."""
    num_points: int | None = None
    """Points per cloud (of rooms: per room), drawn anew in each epoch; null: all of them."""
    poisson: float | None = None
    """Thin each cloud to a Poisson disk sampling of this radius, before num_points."""
    normals: bool = False
    """Normals as features, where the data has them; else the constant 1."""
    box: bool = True
    """Of a classification: centre each cloud, the longest side of its bounding box from -1 to 1."""
    up: Literal["x", "y", "z"] = "z"
    """The axis that points upwards; y in ScanObjectNN."""
    rotate: bool = True
    """Random rotation about the up axis in training and in voting."""
    scale: float = 0.1
    """Random scale of each axis, between 1 - scale and 1 + scale."""
    mirror: bool = False
    """Random mirroring of the two level axes."""
    jitter: float = 0.0
    """Standard deviation of noise on the coordinates."""
    radius: float = 2.0
    """Of a segmentation: predictions are made for the points within a sphere of this radius."""
    context: float = 4.0
    """Of a segmentation: the points within this radius are the network's input."""
    crops: int | None = None
    """Of a segmentation: spheres per epoch; null: as many as there are scenes."""
    batch_size: int = 8
    """Clouds per step and process."""
    drop_last: bool = False
    """Leaves out a last batch that is smaller than the others."""
    workers: int = 0
    """Processes that prepare batches; 0: the training process itself."""
    cache: bool = True
    """Keeps the data set in memory. Leave it on unless the set does not fit."""


@dataclass
class ModelConfig:
    """Which network."""

    network: Literal["classifier", "unet", "pointconv", "pointconv-classifier"] = "classifier"
    """The paper's classifier or U-Net, or PointConv's own networks."""
    method: str = "MCConv"
    """A named method of pointvar.methods."""
    basis: str | None = None
    """With an estimator, instead of a method: a name of pointvar.basis."""
    estimator: str | None = None
    """With a basis, instead of a method: a name of pointvar.estimator."""
    num_basis: int | None = None
    """Basis functions; null: the method's own number."""
    channels: list[int] | None = None
    """Features of each level; null here and below: the network's own default."""
    head: int | None = None
    """Hidden units of a classifier's head."""
    radii: list[float] | None = None
    """Poisson radius of each level."""
    reach: float | None = None
    """Receptive field in units of the level's radius."""
    max_neighbors: int | None = 16
    """Random cap on the neighbours of a point; null: no cap."""
    norm: Literal["none", "batch", "group", "layer"] = "none"
    """Normalisation of features."""
    head_norm: Literal["none", "batch", "group", "layer"] | None = None
    """Normalisation in a classifier's head, where each cloud is one row; null: the same as norm."""
    unit_response: bool = False
    """Divides each convolution by its response to a constant feature."""
    orthonormal: bool = False
    """Mixes the functions of each basis so that they are orthonormal."""
    dropout: float | None = None
    """Before each convolution."""
    head_dropout: float | None = None
    """Before each linear layer of a classifier's head."""
    bias: bool | None = None
    """Without a norm: a learned bias in its place."""
    first_reach: float | None = None
    """Of the U-Net: reach of the convolution from the input points to the first level."""
    recompute: bool = False
    """Of the U-Net: computes activations again in the backward pass, for less memory."""


@dataclass
class InitConfig:
    """How the weights are drawn."""

    method: Literal[
        "direct", "transfer", "closed", "standard", "authors", "xavier", "lsuv", "data-dependent", "none"
    ] = "direct"
    """direct, lsuv and data-dependent measure on training batches; transfer takes a table; none leaves the
    weights as the network was made with; the others look at no data."""
    layers: Literal["convolutions", "all"] = "convolutions"
    """Point convolutions alone, as in the paper, or every layer that can be initialised, of any library."""
    batches: int = 8
    """Training batches to measure on."""
    table: str = "modelnet40"
    """Of transfer: a shipped table, or a file."""
    target: float = 1.0
    """Second moment that the output of each layer is to have."""


@dataclass
class OptimizerConfig:
    """Stochastic gradient descent with momentum."""

    rate: float = 0.005
    """Learning rate at the beginning."""
    milestones: list[int] = field(default_factory=list)
    """After these epochs the rate is multiplied by gamma."""
    gamma: float = 0.1
    """Factor on the rate at each milestone."""
    momentum: float = 0.9
    """Of the gradients."""
    weight_decay: float = 1e-4
    """On the weights of convolutions only."""
    clip_norm: float | None = None
    """Largest norm of the gradient of all parameters together."""
    agc: float | None = None
    """Adaptive gradient clipping: largest norm of a unit's gradient, relative to the norm of its weights."""
    accumulate: int = 1
    """Batches whose gradients are averaged for one step."""
    class_weights: bool = False
    """Weighs the loss of each class against its frequency in the training data."""


@dataclass
class Config:
    """A training run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    init: InitConfig = field(default_factory=InitConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    epochs: int = 30
    """Passes over the training data."""
    evaluate_every: int = 1
    """Epochs from one evaluation on the test data to the next; there is always one at the end."""
    votes: int = 1
    """Augmented passes whose probabilities are summed in the final evaluation; 1: one pass, not augmented."""
    seed: int = 0
    """Of everything random."""
    threads: int | None = None
    """Threads of the training process; null: as torch has it. Results are the same for the same number."""
    bf16: bool = False
    """Forward and backward pass in bfloat16, weights in float32."""
    output: str | None = None
    """Directory of the run; null: nothing is written."""
    logger: Literal["tensorboard", "wandb", "mlflow", "none"] = "tensorboard"
    """Where the numbers of each epoch go besides metrics.jsonl, if there is an output directory."""
    checkpoint_steps: int | None = None
    """Saves a checkpoint after so many optimiser steps, besides that of every epoch."""
    accelerator: str = "auto"
    """cpu, gpu, or what there is; see Lightning's Trainer."""
    devices: int = 1
    """Processes per node, each with one device."""
    nodes: int = 1
    """Machines."""

    def __post_init__(self) -> None:
        positive = {
            "epochs": self.epochs,
            "evaluate_every": self.evaluate_every,
            "votes": self.votes,
            "data.batch_size": self.data.batch_size,
            "data.radius": self.data.radius,
            "optimizer.accumulate": self.optimizer.accumulate,
            "optimizer.rate": self.optimizer.rate,
            "init.batches": self.init.batches,
        }
        optional = {
            "threads": self.threads,
            "checkpoint_steps": self.checkpoint_steps,
            "data.train_size": self.data.train_size,
            "data.test_size": self.data.test_size,
            "data.num_points": self.data.num_points,
            "data.poisson": self.data.poisson,
            "data.crops": self.data.crops,
            "optimizer.agc": self.optimizer.agc,
            "optimizer.clip_norm": self.optimizer.clip_norm,
        }
        for name, value in {**positive, **{k: v for k, v in optional.items() if v is not None}}.items():
            if not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        if self.seed < 0 or self.data.workers < 0:
            raise ValueError(
                f"seed and data.workers must not be negative, got {self.seed} and {self.data.workers}"
            )
        if not self.data.context >= self.data.radius:
            raise ValueError(
                f"data.context must not be less than data.radius, got {self.data.context} "
                f"and {self.data.radius}"
            )
        if not (0 <= self.data.scale < 1 and self.data.jitter >= 0):
            raise ValueError(
                f"data.scale must be from 0 to below 1 and data.jitter not negative, got {self.data.scale} "
                f"and {self.data.jitter}"
            )
        if (self.model.basis is None) != (self.model.estimator is None):
            raise ValueError("model.basis and model.estimator come together, or not at all")

    def to_yaml(self) -> str:
        """The run as YAML text, which ``load_config`` reads."""
        import yaml

        return yaml.safe_dump(asdict(self), sort_keys=False)


def load_config(*sources: str | Path | Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """A run from recipes and YAML files, the later ones over the earlier, and overrides over all.

    Args:
        sources: names of recipes (``"shapes"``, ``"norm-free"``, ...), YAML files, or nested dictionaries.
        overrides: as on the command line: ``["--data.batch_size", "2", "--optimizer.rate=0.01"]``.

    Example::

        config = load_config("scanobjectnn", "norm-free", overrides=["--data.path=scanobjectnn"])
    """
    merged: dict[str, Any] = {}
    for source in sources:
        merge(merged, source if isinstance(source, Mapping) else _read(source))
    parser = _parser()
    try:
        base = parser.parse_object(merged)
        chosen = parser.instantiate(parser.parse_args(list(overrides), namespace=base))
    except SystemExit:
        raise
    except Exception as error:
        raise ValueError(str(error)) from error
    return Config(**vars(chosen))


def _read(source: str | Path) -> Mapping[str, Any]:
    if str(source) in RECIPES:
        return RECIPES[str(source)]
    path = Path(source)
    if not path.is_file():
        raise ValueError(f"{source} is neither a YAML file nor a recipe; recipes: {', '.join(RECIPES)}")
    import yaml

    content = yaml.safe_load(path.read_text())
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a configuration: expected sections such as data, model, optimizer")
    return content


def merge(target: dict[str, Any], source: Mapping[str, Any]) -> None:
    """Puts the settings of a source over those of a target, section by section."""
    for key, value in source.items():
        if isinstance(value, Mapping) and key in ("data", "model", "init", "optimizer"):
            merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


def _parser() -> Any:
    try:
        import jsonargparse
    except ImportError as error:
        raise ImportError("training needs jsonargparse: pip install 'pointvar[train]'") from error
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = jsonargparse.ArgumentParser(prog="pointvar train", exit_on_error=False)
    parser.add_class_arguments(Config, as_group=False)
    return parser
