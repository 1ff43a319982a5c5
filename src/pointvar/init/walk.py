"""Forward passes that stop at each layer to look at its real input, and leave no other trace on a model."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn

from pointvar.convolution import PointConvolution
from pointvar.geometry import Neighborhood
from pointvar.init.report import InitReport, LayerInit
from pointvar.init.travel import Traveller
from pointvar.layers import (
    Claims,
    Forward,
    Layer,
    Select,
    as_batches,
    candidates,
    feed,
    first_tensor,
    forked_random,
    nothing_to_set,
    pointwise,
    restored,
    size_of,
    uncompiled,
)


class Call:
    """A layer about to be called with its real input."""

    def __init__(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.layer, self.args, self.kwargs = layer, args, kwargs
        self.graph = torch.is_grad_enabled()
        """Whether it is part of a graph of gradients, in which no weight may change any more."""
        self.projection: Tensor | None = None
        """What its weights multiply, while that is kept."""
        self.given: Tensor | None = None
        """What it gave, of a call that is over."""
        self.factor = 1.0
        """What its weights were scaled by since."""
        device = layer.weights[0].device.type
        dtype, lower = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        self._precision = torch.autocast(device, dtype, lower, cache_enabled=False)

    def take(self, statistic: Statistic) -> Tensor:
        """Measures, in the precision of the call, whichever thread asks."""
        with self._precision:
            return statistic(self)

    def second_moment(self) -> Tensor:
        """Z as the layer's kind computes it, a float64 scalar."""
        measure = self.layer.kind.second_moment
        assert measure is not None
        return measure(self.layer.module, *self.args, **self.kwargs)

    def output(self) -> Tensor:
        """What the layer would give with its present weights, without its bias."""
        with torch.no_grad():
            biases = [b.clone() for b in self.layer.biases]
            for bias in self.layer.biases:
                bias.zero_()
        try:
            return self.whole_output()
        finally:
            with torch.no_grad():
                for bias, value in zip(self.layer.biases, biases, strict=True):
                    bias.copy_(value)

    def whole_output(self) -> Tensor:
        """What the layer would give now."""
        # The same random numbers in every trial, if the layer uses any.
        with nullcontext() if self._draws_nothing else forked_random(self.layer.module):
            result = self.layer.module.forward(*self.args, **self.kwargs)
        while isinstance(result, (tuple, list)) and result:
            result = result[0]
        if not isinstance(result, Tensor):
            raise TypeError(
                f"{self.layer.name} must return a tensor to be measured, got {type(result).__name__}"
            )
        return result

    @property
    def _draws_nothing(self) -> bool:
        return self.layer.kind.second_moment is not None and pointwise(self.layer.module)

    @property
    def hood(self) -> Neighborhood | None:
        values = (*self.args, *self.kwargs.values())
        return next((v for v in values if isinstance(v, Neighborhood)), None)


Statistic = Callable[[Call], Tensor]
Steps = Generator[Statistic, Tensor, LayerInit | str]
Strategy = Callable[[Layer], Steps]
"""Sets one layer. Yields what to measure at the layer's input, is sent its mean over all batches and ranks,
and ends with an entry for the report, or with the reason why the layer was left alone."""


NARROW = 32
"""Fewer channels than this are few to average over. Where all points are alike, the second moment of 31
channels is outside of [0.5, 2] in one draw of a hundred, that of one channel in two of three."""


def square_mean(value: Tensor) -> Tensor:
    """The mean of all squares, in float64."""
    return torch.linalg.vector_norm(value, dtype=torch.float64).square() / value.numel()


@dataclass(frozen=True)
class Rescale:
    """A statistic that is taken of what a call gives, when it is over, where nothing is added to that; the
    weights are scaled so that its second moment is ``goal``. The strategy is sent the factor, which is
    negative if the output is nowhere positive.
    """

    goal: float

    def __call__(self, call: Call) -> Tensor:
        """The second moment of the output, and whether it is positive anywhere, ``[2]``."""
        out = call.output() if call.given is None else call.given
        moment = square_mean(out)
        few = call.layer.channels < NARROW and out.numel()  # of many, some are positive
        return torch.stack([moment, (out.amax() > 0).to(moment) if few else torch.ones_like(moment)])

    def scale(self, layer: Layer, found: Tensor) -> float:
        """Scales the weights; the factor."""
        moment, positive = found
        factor = (self.goal / checked(layer, moment, "output")) ** 0.5 * (1 if positive else -1)
        layer.scale(factor)
        return factor


def walk(
    model: nn.Module,
    batches: Any,
    strategy: Strategy,
    *,
    method: str,
    layers: Select = None,
    forward: Forward | None = None,
    mode: str | None = "train",
    dropout: bool = False,
    unknown: bool = False,
    num_batches: int | None = None,
) -> InitReport:
    """Applies ``strategy`` to each layer in the order in which the forward pass reaches it.

    It takes one pass for each batch. The pass stops at a layer that is not set yet, until it is set on its
    real input, and goes on with its real output. Passes of several batches wait for each other there.
    """
    begin = time.perf_counter()
    model = uncompiled(model)
    left_alone: dict[str, str] = {}
    found = candidates(model, layers, left_alone, unknown)
    if not found:
        raise nothing_to_set(model, left_alone)
    every = as_batches(batches, num_batches)
    report = InitReport(method, left_alone=left_alone, batches=len(every), passes=len(every))
    report.clouds, report.points = _sizes(every)
    journey = _Journey(found, strategy, report)
    with torch.no_grad(), restored(model, mode, dropout), journey.hooks():
        if len(every) == 1:
            journey.run(model, every[0], forward)
        else:
            journey.run_all(model, every, forward)
    for layer in found:
        if layer.name not in journey.settled:
            left_alone.setdefault(layer.name, "never reached")
    if not report.layers:
        raise nothing_to_set(model, left_alone)
    for entry in report.layers:
        entry.calls = journey.calls[entry.name]
    report.seconds = time.perf_counter() - begin
    return report


def _sizes(batches: list[Any]) -> tuple[int | None, int | None]:
    """How many clouds and points there are in all, where every batch says so."""
    clouds, points = zip(*(size_of(batch) for batch in batches), strict=True)
    return None if None in clouds else sum(clouds), None if None in points else sum(points)


class _Pass:
    """What one pass has met so far."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.radii: dict[str, set[float]] = {}

    def see(self, call: Call) -> None:
        """Counts calls, and refuses a layer that has to serve two receptive fields."""
        name, hood = call.layer.name, call.hood
        self.calls[name] = self.calls.get(name, 0) + 1
        if hood is None:
            return
        if isinstance(call.layer.module, PointConvolution) and hood.queries.num_points:
            radii = set(hood.radius.detach().unique().tolist())
            if len(radii) <= hood.queries.num_clouds:  # else nearest neighbours: every query has its own
                before = self.radii.setdefault(name, radii)
                if before.isdisjoint(radii):
                    raise ValueError(
                        f"{name} is shared between two receptive fields, with radius {_list(before)} and "
                        f"{_list(radii)}: no single variance suits both; use two layers"
                    )


class _Journey:
    """The passes of one initialisation."""

    def __init__(self, layers: list[Layer], strategy: Strategy, report: InitReport) -> None:
        self.layers, self.strategy, self.report = layers, strategy, report
        self.settled: set[str] = set()
        self.suspended: dict[str, tuple[Steps, Rescale]] = {}
        """Layers that are set but for a factor, which is found behind their calls."""
        self.claims = Claims()
        self.seen: _Pass = _Pass()  # by the pass that runs now, ...
        self.wait: Callable[[Call], None] = self._settle_at_once  # ... and what it does where nothing is set
        self.calls: dict[str, int] = {}
        self.measuring = False  # layers inside one that is measured are not reached by a pass

    @contextmanager
    def hooks(self) -> Iterator[None]:
        handles = []
        for layer in self.layers:
            module, behind = layer.module, self._late_hook if layer.kind.late else self._output_hook
            handles.append(module.register_forward_hook(behind(layer), with_kwargs=True, prepend=True))
            if not layer.kind.late:
                handles.append(module.register_forward_pre_hook(self._hook(layer), with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, layer: Layer) -> Callable[[nn.Module, Any, Any], None]:
        def reach(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self.measuring:
                return
            call = Call(layer, args, kwargs)
            self.seen.see(call)
            given = first_tensor((args, kwargs))
            if given is not None and not given.numel():  # as of an expert that is not asked
                self.report.left_alone.setdefault(layer.name, "its input is empty")
            elif layer.name not in self.settled:
                self.report.left_alone.pop(layer.name, None)
                self.wait(call)

        return reach

    def _output_hook(self, layer: Layer) -> Callable[[nn.Module, Any, Any, Any], Any]:
        """Where the output is to be scaled: it need not be computed twice, being linear in the weights."""

        def leave(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            if self.measuring or layer.name not in self.suspended:
                return None
            call = Call(layer, args, kwargs)
            call.given = first_tensor(output)
            self.wait(call)
            if isinstance(output, Tensor):
                return output * call.factor
            with self._measurement():
                return module.forward(*args, **kwargs)

        return leave

    def _late_hook(self, layer: Layer) -> Callable[[nn.Module, Any, Any, Any], Any]:
        """For modules that hold layers: these have been set in the call that ends here, which is repeated."""

        def leave(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            if self.measuring or layer.name in self.settled:
                return None
            self.seen.calls[layer.name] = 1
            self.wait(Call(layer, args, kwargs))
            with self._measurement():
                return module.forward(*args, **kwargs)

        return leave

    @contextmanager
    def _measurement(self) -> Iterator[None]:
        before, self.measuring = self.measuring, True
        try:
            yield
        finally:
            self.measuring = before

    def _settle_at_once(self, call: Call) -> None:
        with torch.no_grad():  # a model may have switched gradients on
            self._settle([call])

    def _settle(self, calls: list[Call]) -> None:
        """Sets a layer from one call or, of several batches, the mean over the calls."""
        layer = calls[0].layer
        self.settled.add(layer.name)
        if layer.name in self.suspended:
            steps, rescale = self.suspended.pop(layer.name)
            result = self._go_on(calls, steps, rescale)
            for call in calls:
                call.factor = self.factor
        else:
            result = self.claims.claim(layer) or self._go_on(calls, self.strategy(layer))
        _same_on_all_ranks(layer)
        if isinstance(result, str):
            self.report.left_alone[layer.name] = result
        elif result is not None:
            self.report.layers.append(result)
            self.report.left_alone |= dict.fromkeys(layer.dropped, f"{layer.type} is not linear in it")

    def _go_on(
        self, calls: list[Call], steps: Steps, statistic: Statistic | None = None
    ) -> LayerInit | str | None:
        """Takes the steps of a strategy to their end; or to where the output is wanted, with ``None``."""
        layer = calls[0].layer
        drawn = (*layer.weights, *layer.biases) if layer.kind.late else ()
        before = [(p, p.detach().clone()) for p in drawn]
        self.factor = 1.0
        try:
            behind, statistic = statistic is not None, statistic or next(steps)
            while True:
                _same_on_all_ranks(layer)  # what is measured is one layer, whatever each rank has drawn
                linear = layer.adds_nothing and not any(call.graph for call in calls)
                if isinstance(statistic, Rescale) and linear and not behind:
                    self.suspended[layer.name] = steps, statistic
                    return None
                with self._measurement():
                    measured = torch.stack([call.take(statistic) for call in calls]).mean(0)
                found = _mean_over_ranks(measured)
                if isinstance(statistic, Rescale):
                    self.factor = statistic.scale(layer, found)
                    found = torch.tensor(self.factor, dtype=torch.float64)
                statistic = steps.send(found)
        except StopIteration as end:
            return end.value
        except Silent as silence:
            if not self.report.layers:
                raise  # it is the data, and not a gate that a draw has shut
            warnings.warn(f"{layer.name} is left alone: {silence.reason}", stacklevel=2)
            return silence.reason
        except Exception as problem:
            if not layer.kind.late:
                raise
            for parameter, value in before:
                parameter.detach().copy_(value)
            return f"no rule for {layer.type}, and it cannot be tried: {problem}"

    def run(self, model: nn.Module, batch: Any, forward: Forward | None) -> None:
        """One pass. Each layer is set when it is reached, and the pass goes on with its real output."""
        (forward or feed)(model, batch)
        self.calls = self.seen.calls

    def run_all(self, model: nn.Module, batches: list[Any], forward: Forward | None) -> None:
        """One pass for each batch, side by side: all wait at a layer until it is set from all of them."""
        passes = [Traveller(model, partial(forward or feed, model, batch)) for batch in batches]
        seen = {one: _Pass() for one in passes}

        def go_on(one: Traveller) -> None:
            self.seen, self.wait = seen[one], one.wait
            one.go_on()

        try:
            for one in passes:
                go_on(one)
            while waiting := [one for one in passes if one.waits_for is not None]:
                # Where passes take different ways, the layer that comes first is likely to be first for all.
                # One that is not set as a whole goes before all.
                layer = min(
                    (one.waits_for.layer for one in waiting),
                    key=lambda layer: (layer.name not in self.suspended, self.layers.index(layer)),
                )
                here = [one for one in waiting if one.waits_for.layer is layer]
                self._settle([one.waits_for for one in here])
                for one in here:
                    go_on(one)
        finally:
            for one in passes:
                one.stop()
        for one in passes:
            self.calls.update({n: max(c, self.calls.get(n, 0)) for n, c in seen[one].calls.items()})


def _distributed() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _mean_over_ranks(value: Tensor) -> Tensor:
    if _distributed():
        value = value.clone()
        distributed.all_reduce(value)
        value = value / distributed.get_world_size()
    return value


def _same_on_all_ranks(layer: Layer) -> None:
    """Whatever each rank has drawn, all go on with the weights of the first."""
    if _distributed():
        for parameter in layer.module.parameters():
            distributed.broadcast(parameter.data, 0)


def _list(radii: set[float]) -> str:
    return ", ".join(f"{r:.4g}" for r in sorted(radii))


class Silent(ValueError):
    """A layer is given nothing but zeros."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}; no weights can be derived from it")
        self.reason = reason


def checked(layer: Layer, value: Tensor, what: str) -> float:
    """A second moment that weights can be drawn from, or an error that names the layer."""
    number = float(value)
    if 0 < number < float("inf"):
        return number
    if number == 0:
        here = isinstance(layer.module, PointConvolution)
        hint = " (are there neighbours? a radius may be too small)" if here else ""
        raise Silent(layer.name, f"its {what} is 0 everywhere{hint}")
    raise ValueError(
        f"{layer.name}: its {what} is empty, or has values that are not finite; no weights can be derived "
        "from it"
    )
