"""Forward passes that stop at each layer to look at its real input, and leave no other trace on a model."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

import torch
from torch import Tensor, distributed, nn

from pointvar.convolution import PointConvolution
from pointvar.geometry import Neighborhood
from pointvar.init.report import InitReport, LayerInit
from pointvar.layers import (
    Claims,
    Forward,
    Layer,
    Select,
    as_batches,
    candidates,
    devices_of,
    feed,
    nothing_to_set,
    restored,
    size_of,
)


class Call:
    """A layer about to be called with its real input."""

    def __init__(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.layer, self.args, self.kwargs = layer, args, kwargs

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
            # The same random numbers in every trial, if the layer uses any.
            with torch.random.fork_rng(devices=devices_of(self.layer.module)):
                result = self.layer.module.forward(*self.args, **self.kwargs)
        finally:
            with torch.no_grad():
                for bias, value in zip(self.layer.biases, biases, strict=True):
                    bias.copy_(value)
        while isinstance(result, (tuple, list)) and result:
            result = result[0]
        if not isinstance(result, Tensor):
            raise TypeError(
                f"{self.layer.name} must return a tensor to be measured, got {type(result).__name__}"
            )
        return result

    @property
    def hood(self) -> Neighborhood | None:
        values = (*self.args, *self.kwargs.values())
        return next((v for v in values if isinstance(v, Neighborhood)), None)


Statistic = Callable[[Call], Tensor]
Strategy = Callable[[Layer], Generator[Statistic, Tensor, LayerInit | str]]
"""Sets one layer. Yields what to measure at the layer's input, is sent its mean over all batches and ranks,
and ends with an entry for the report, or with the reason why the layer was left alone."""


def walk(
    model: nn.Module,
    batches: Any,
    strategy: Strategy,
    *,
    method: str,
    layers: Select = None,
    forward: Forward | None = None,
    mode: str | None = "train",
    num_batches: int | None = None,
) -> InitReport:
    """Applies ``strategy`` to each layer in the order in which the forward pass reaches it.

    With one batch it takes one pass: each layer is set when it is reached, and the pass goes on with its real
    output. With several batches, each layer takes one partial pass per batch and thing to be measured, and a
    whole pass per batch ends the journey, which finds layers that are called again.
    """
    begin = time.perf_counter()
    model = getattr(model, "_orig_mod", model)  # of a compiled model, the one that hooks can be put on
    left_alone: dict[str, str] = {}
    found = candidates(model, layers, left_alone)
    if not found:
        raise nothing_to_set(model, left_alone)
    every = as_batches(batches, num_batches)
    journey = _Journey(found, strategy, InitReport(method, left_alone=left_alone, batches=len(every)))
    with torch.no_grad(), restored(model, mode), journey.hooks():
        if len(every) == 1:
            journey.run(model, every[0], forward)
        else:
            journey.run_all(model, every, forward)
    for layer in found:
        if layer.name not in journey.settled:
            left_alone[layer.name] = "never reached"
    if not journey.report.layers:
        raise nothing_to_set(model, left_alone)
    for entry in journey.report.layers:
        entry.calls = journey.calls[entry.name]
    journey.report.seconds = time.perf_counter() - begin
    return journey.report


class _Reached(BaseException):
    """Ends a pass at the layer in question; not an Exception, so that no model swallows it."""


class _Journey:
    """The passes of one initialisation."""

    def __init__(self, layers: list[Layer], strategy: Strategy, report: InitReport) -> None:
        self.layers, self.strategy, self.report = layers, strategy, report
        self.settled: set[str] = set()
        self.claims = Claims()
        self.calls: dict[str, int] = {}
        self.radii: dict[str, set[float]] = {}
        self.single = True
        self.where: Layer | None = None  # with several batches: the layer in question, ...
        self.call: Call | None = None  # ... and how the last pass called it

    @contextmanager
    def hooks(self) -> Iterator[None]:
        handles = [
            layer.module.register_forward_pre_hook(self._hook(layer), with_kwargs=True)
            for layer in self.layers
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, layer: Layer) -> Callable[[nn.Module, Any, Any], None]:
        def reach(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            call = Call(layer, args, kwargs)
            self._see(call)
            if layer.name in self.settled:
                return
            if self.single:
                with torch.no_grad():  # a model may have switched gradients on
                    self._settle(layer, lambda statistic: statistic(call))
                return
            if self.where in (None, layer):
                self.where, self.call = layer, call
                raise _Reached

        return reach

    def _see(self, call: Call) -> None:
        """Counts clouds and points, and refuses a layer that has to serve two receptive fields."""
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

    def _settle(self, layer: Layer, measure: Callable[[Statistic], Tensor]) -> None:
        result = self.claims.claim(layer) or self._set(layer, measure)
        self.settled.add(layer.name)
        if isinstance(result, str):
            self.report.left_alone[layer.name] = result
        else:
            _same_on_all_ranks(layer)
            self.report.layers.append(result)

    def _set(self, layer: Layer, measure: Callable[[Statistic], Tensor]) -> LayerInit | str:
        steps = self.strategy(layer)
        try:
            statistic = next(steps)
            while True:
                _same_on_all_ranks(layer)  # what is measured is one layer, whatever each rank has drawn
                statistic = steps.send(_mean_over_ranks(measure(statistic)))
        except StopIteration as end:
            return end.value

    def run(self, model: nn.Module, batch: Any, forward: Forward | None) -> None:
        self.calls, self.radii = {}, {}
        self.report.passes += 1
        clouds, points = size_of(batch)
        if self.single:
            self.report.clouds, self.report.points = clouds, points
        (forward or feed)(model, batch)

    def run_all(self, model: nn.Module, batches: list[Any], forward: Forward | None) -> None:
        self.single = False
        sizes = [size_of(batch) for batch in batches]
        if all(clouds is not None and points is not None for clouds, points in sizes):
            self.report.clouds = sum(clouds or 0 for clouds, _ in sizes)
            self.report.points = sum(points or 0 for _, points in sizes)
        seeds = torch.randint(2**62, (len(batches),)).tolist()  # the same dropout in each pass of a batch
        seen: dict[str, int] = {}

        def visit(index: int) -> Call | None:
            """How a pass calls the layer in question, which ends it; if none is, the first not yet set."""
            self.call = None
            with suppress(_Reached), torch.random.fork_rng(devices=devices_of(model)):
                torch.manual_seed(seeds[index])
                self.run(model, batches[index], forward)
            seen.update({n: max(c, seen.get(n, 0)) for n, c in self.calls.items()})
            return self.call

        while True:  # until no batch reaches a layer that is not set, so that the last passes are whole
            self.where = None
            visits = ((index, visit(index)) for index in range(len(batches)))
            start, first = next(((i, call) for i, call in visits if call is not None), (0, None))
            if first is None:
                break

            def measure(statistic: Statistic, start: int = start, first: Call = first) -> Tensor:
                # One input is alive at a time, beside the first: not those of all batches together.
                calls = chain([first], (visit(index) for index in range(start + 1, len(batches))))
                return torch.stack([statistic(call) for call in calls if call is not None]).mean(0)

            self._settle(first.layer, measure)
        self.calls = seen


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


def checked(layer: Layer, value: Tensor, what: str) -> float:
    """A second moment that weights can be drawn from, or an error that names the layer."""
    number = float(value)
    if 0 < number < float("inf"):
        return number
    problem = "is 0 everywhere" if number == 0 else "is empty, or has values that are not finite"
    hint = ""
    if number == 0 and isinstance(layer.module, PointConvolution):
        hint = " (are there neighbours? a radius may be too small)"
    raise ValueError(f"{layer.name}: its {what} {problem}{hint}; no weights can be derived from it")
