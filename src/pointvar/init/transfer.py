r"""Transfer: weights for a network from tables of z made once on other data.

z of a layer is Z per input channel, measured at each depth of a plain network (no pooling, no skips) under
direct initialisation. A layer of C channels at depth l is drawn from

.. math:: \mathrm{Var}[w] = \frac{V_\mathrm{target}}{C \, z_l \, V_\mathrm{in}}

where :math:`V_\mathrm{in}` is the second moment of the input features for the first layer, and the target for
the others.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pointvar.atomic import write_atomically
from pointvar.convolution import PointConvolution
from pointvar.geometry import Neighborhood
from pointvar.init.baselines import by_rule
from pointvar.init.closed_form import activation_moment
from pointvar.init.closed_form import depths as registration
from pointvar.init.report import InitReport
from pointvar.layers import Layer, Select, find_layers, outermost
from pointvar.limits import parse_json
from pointvar.methods import METHODS, resolve


@dataclass
class Table:
    """z by method and depth, and where it comes from."""

    name: str
    z: dict[str, list[float]]
    """By method (``"MCConv"``, or ``"MCConv unit"`` with unit response), from the first layer on."""
    num_basis: dict[str, int]
    """K, by method."""
    activation_moment: float
    """m of the activation between the layers: (1 + slope^2) / 2 for a leaky ReLU."""
    max_neighbors: int | None
    provenance: dict[str, Any] = field(default_factory=dict)
    """Data, radius rule, neighbours, activation, channels, seed, date, version."""

    def __post_init__(self) -> None:
        if not isinstance(self.z, dict) or not isinstance(self.num_basis, dict):
            raise TypeError("z and num_basis must be given by method")
        for row, values in self.z.items():
            if not values or not all(isinstance(v, (int, float)) and 0 < v < math.inf for v in values):
                raise ValueError(f"z of {row} must be positive and finite numbers by depth, got {values}")
            if row not in self.num_basis:
                raise ValueError(f"num_basis has no entry for {row}")
        if not self.z or not 0 < self.activation_moment < math.inf:
            raise ValueError("a table needs rows of z, and a positive activation moment")

    @classmethod
    def load(cls, table: str | Path) -> Table:
        """A table that is shipped, by name (``tables()`` lists them), or from a JSON file."""
        path = Path(table)
        if path.suffix != ".json":
            if str(table) not in tables():
                shipped = ", ".join(tables()) or "none"
                raise ValueError(
                    f"there is no table {str(table)!r}; shipped: {shipped}; or a path to a .json file, as "
                    "`pointvar tables` writes"
                )
            content = (resources.files("pointvar.init") / "tables" / f"{table}.json").read_bytes()
        elif path.is_file():
            content = path.read_bytes()
        else:
            raise ValueError(f"there is no file {path}")
        try:
            return cls(**parse_json(content))
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{table} is not a table of z: {error}") from error

    def save(self, path: str | Path) -> None:
        """Writes the table as JSON."""
        write_atomically(path, json.dumps(asdict(self), indent=1) + "\n")

    def __str__(self) -> str:
        depth = max(map(len, self.z.values()), default=0)
        return f"table {self.name!r}: z of {', '.join(self.z)} at {depth} depths, {self.provenance}"


def tables() -> list[str]:
    """The names of the tables that are shipped."""
    folder = resources.files("pointvar.init") / "tables"
    if not folder.is_dir():
        return []
    return sorted(f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json"))


def transfer_init(
    model: nn.Module,
    table: str | Path | Table,
    target: float = 1.0,
    *,
    depths: Mapping[str, int] | None = None,
    input_moment: float = 1.0,
    activation: str | float | Callable[[Tensor], Tensor] | None = None,
    max_neighbors: int | None = None,
    layers: Select = None,
    generator: torch.Generator | None = None,
) -> InitReport:
    r"""Initialises point convolutions from a table of z, without data.

    Args:
        model: any module; its ``PointConvolution`` layers of the table's methods are set, others left alone.
        table: the name of a table that is shipped, a path to one, or a ``Table``.
        target: second moment that the output of each layer is to have.
        depths: depth by layer name, from 0, where it is not the order of registration among the model's point
            convolutions.
        input_moment: second moment of the input features, for layers at depth 0.
        activation: the activation between the layers, as for ``closed_form_init``; default: the first
            activation module that the model has, else that of the table. z is proportional to its second
            moment, so where it differs from the table's, z is scaled by the ratio.
        max_neighbors: the cap on neighbours in use, to be checked against the table's.
        layers: which layers; types, name patterns or a predicate.
        generator: where weights come from; default: torch's global generator.

    A depth beyond the table takes its last value, since z settles with depth (a warning says so). A method
    that is not in the table, another number of basis functions, and another cap on neighbours are errors:
    make a table for them (``pointvar tables``).
    """
    if not isinstance(table, Table):
        table = Table.load(table)
    if max_neighbors is not None and max_neighbors != table.max_neighbors:
        raise ValueError(
            f"table {table.name!r} was made with at most {table.max_neighbors} neighbours, not "
            f"{max_neighbors}: make one with `pointvar tables --max-neighbors`"
        )
    for name, value in {"target": target, "input_moment": input_moment}.items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} must be positive and finite, got {value}")
    activation = _activation_of(model) if activation is None else activation
    ratio = 1.0
    if activation is not None:
        ratio = activation_moment(activation, target) / (table.activation_moment * target)
    order = registration(model)
    convs = {x.name for x in find_layers(model, layers)[0] if x.module in order}
    unknown = set(depths or {}) - convs
    if unknown:
        raise ValueError(f"depths names {', '.join(sorted(unknown))}, no point convolution that is to be set")
    chosen: dict[str, int] = {}
    beyond: list[str] = []

    def rule(layer: Layer) -> float | str:
        if not isinstance(layer.module, PointConvolution):
            return "no point convolution"
        z = table.z[_row(layer.module, layer.name, table)]
        depth = (depths or {}).get(layer.name, order[layer.module])
        if depth < 0:
            raise ValueError(f"the depth of {layer.name} must be at least 0, got {depth}")
        chosen[layer.name] = depth
        if depth >= len(z):
            beyond.append(layer.name)
        scale = input_moment if depth == 0 else target * ratio
        return target / (layer.module.in_channels * z[min(depth, len(z) - 1)] * scale)

    report = by_rule(model, f"transfer from {table.name}", rule, layers, generator, target)
    for entry in report.layers:
        entry.depth = chosen[entry.name]
        entry.second_moment = target / entry.variance
        if entry.name in beyond:
            entry.note = "beyond the table: its last value"
    if beyond:
        warnings.warn(
            f"{len(beyond)} layers lie deeper than table {table.name!r} reaches and take its last value, "
            f"from {beyond[0]} on",
            stacklevel=2,
        )
    return report


def _row(conv: PointConvolution, name: str, table: Table) -> str:
    """The row of the table that serves a layer, or an error that says what is missing."""
    row = f"{conv.method} unit" if conv.unit_response else str(conv.method)
    if row not in table.z:
        advice = "make one with `pointvar tables`, or use variance_init"
        if conv.method not in METHODS:  # orthonormal, or a pair of one's own
            advice = "tables are of published methods; use variance_init, or closed_form_init"
        raise ValueError(
            f"{name} is {row!r}, which table {table.name!r} does not have (it has {', '.join(table.z)}): "
            f"{advice}"
        )
    if conv.basis.size != table.num_basis[row]:
        raise ValueError(
            f"{name} has K = {conv.basis.size} basis functions, table {table.name!r} was made with "
            f"{table.num_basis[row]} for {row}: make one with `pointvar tables --num-basis`"
        )
    return row


_ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.ELU, nn.Tanh, nn.PReLU, nn.Mish, nn.Softplus)


def _activation_of(model: nn.Module) -> nn.Module | None:
    """The first activation between the layers; those inside of a layer, in its basis, are not meant."""
    inside = {part for _, layer, kind in outermost(model) if kind is not None for part in layer.modules()}
    return next((m for m in model.modules() if isinstance(m, _ACTIVATIONS) and m not in inside), None)


def compute_table(
    name: str,
    batches: Sequence[tuple[Tensor, Neighborhood]],
    methods: Iterable[str] = tuple(METHODS),
    *,
    depth: int = 25,
    channels: int = 64,
    num_basis: int | None = None,
    activation: nn.Module | None = None,
    max_neighbors: int | None = None,
    repeats: int = 4,
    seed: int = 0,
    provenance: Mapping[str, Any] | None = None,
    progress: Callable[[list[tuple[str, bool]]], Iterable[tuple[str, bool]]] = iter,
) -> Table:
    """Measures z at each depth of a plain network of convolutions under direct initialisation.

    Args:
        name: of the table.
        batches: pairs of input features and a neighbourhood, each of which counts the same.
        methods: names of methods; each is measured as published and with unit response.
        depth: how many layers.
        channels: of every layer.
        num_basis: K, where it is not the method's own.
        activation: between the layers; default: leaky ReLU of slope 0.2.
        max_neighbors: the cap that the neighbourhoods were made with, to be noted.
        repeats: independent networks to average over.
        seed: of the weights.
        provenance: more to be noted.
        progress: wraps the loop over the rows, to show how far it has come.
    """
    activation = nn.LeakyReLU(0.2) if activation is None else activation
    rows: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    for method, unit in progress([(method, unit) for method in methods for unit in (False, True)]):
        nets = [
            _plain(method, unit, batches, depth, channels, num_basis, activation, seed + i)
            for i in range(repeats)
        ]
        row = f"{method} unit" if unit else method
        values = torch.tensor([z for z, _ in nets], dtype=torch.float64).mean(0)
        rows[row] = [float(f"{v:.6g}") for v in values.tolist()]
        sizes[row] = nets[0][1]
    noted = {
        "depth": depth,
        "channels": channels,
        "activation": str(activation),
        "max_neighbors": max_neighbors,
        "repeats": repeats,
        "seed": seed,
        "date": date.today().isoformat(),
        **(provenance or {}),
    }
    return Table(name, rows, sizes, activation_moment(activation), max_neighbors, noted)


@torch.no_grad()
def _plain(
    method: str,
    unit: bool,
    batches: Sequence[tuple[Tensor, Neighborhood]],
    depth: int,
    channels: int,
    num_basis: int | None,
    activation: nn.Module,
    seed: int,
) -> tuple[list[float], int]:
    """z at each depth of one network, and K. All batches go through it side by side."""
    generator = torch.Generator().manual_seed(seed)
    options: dict[str, Any] = {} if num_basis is None or method == "FlexConv" else {"num_basis": num_basis}
    features = [f for f, _ in batches]
    radius = float(torch.stack([hood.radius.double().mean() for _, hood in batches]).mean())
    moment = float(torch.stack([f.double().square().mean() for f in features]).mean())
    result = []
    for layer in range(depth):
        incoming = features[0].shape[1]
        conv = resolve(
            method, incoming, channels, bias=False, unit_response=unit, generator=generator, **options
        )
        basis: Any = conv.basis
        if getattr(basis, "sees_length", False):
            basis.reset_parameters(generator, radius=radius)
        moments = [conv.second_moment(f, hood) for f, (_, hood) in zip(features, batches, strict=True)]
        total = float(torch.stack(moments).mean())
        nn.init.normal_(conv.weight, 0, total**-0.5, generator=generator)
        result.append(total / incoming / (moment if layer == 0 else 1.0))
        features = [activation(conv(f, hood)) for f, (_, hood) in zip(features, batches, strict=True)]
    return result, conv.basis.size
