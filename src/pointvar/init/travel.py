"""Passes of several batches through a model side by side, which wait for each other at every layer.

Each pass runs in a thread of its own, because only a thread can stop in the middle of a ``forward`` and go on
later. Never do two of them run at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import copy_context
from typing import Any

import torch
from torch import nn

_ABSENT = object()


class Stopped(BaseException):
    """Ends a pass that is not wanted any more; not an Exception, so that no model swallows it."""


class Traveller:
    """One pass, ``run()``, that can be stopped from inside (``wait``) and sent on from outside (``go_on``).

    Attributes that the pass sets on the model's modules are its own: they are taken off while it waits, so
    that a model that remembers something of its input between two layers remembers the right thing.
    """

    def __init__(self, model: nn.Module, run: Callable[[], Any]) -> None:
        self.waits_for: Any = None
        """What ``wait`` was given; ``None`` before the start and after the end."""
        self._model, self._run = model, run
        self._own: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._ended = False
        # What torch keeps for each thread.
        self._autocast = [
            (device, torch.get_autocast_dtype(device))
            for device in ("cpu", "cuda")
            if torch.is_autocast_enabled(device)
        ]
        self._device = torch.get_default_device()
        context = copy_context()
        self._thread = threading.Thread(target=lambda: context.run(self._travel), daemon=True)
        self._thread.start()

    def go_on(self) -> Any:
        """Lets the pass run until it waits again or ends; returns what it waits for."""
        before = [(module.__dict__, dict(module.__dict__)) for module in self._model.modules()]
        for attributes, own in self._own:
            attributes.update(own)
        try:
            self._turn.release()
            self._back.acquire()
        finally:
            self._own = []
            for attributes, values in before:
                changed = {n: v for n, v in attributes.items() if values.get(n, _ABSENT) is not v}
                if changed or len(attributes) != len(values):
                    self._own.append((attributes, changed))
                    attributes.clear()
                    attributes.update(values)
        if self._error is not None:
            raise self._error
        return self.waits_for

    def wait(self, reason: Any) -> None:
        """Called by the pass itself."""
        self.waits_for = reason
        self._back.release()
        self._turn.acquire()
        self.waits_for = None
        if self._ended:
            raise Stopped

    def stop(self) -> None:
        """Ends the pass wherever it is, and waits for its end."""
        self._ended = True
        self._turn.release()
        self._thread.join()

    def _travel(self) -> None:
        self._turn.acquire()
        try:
            with ExitStack() as state:
                state.enter_context(torch.no_grad())
                torch.set_autocast_cache_enabled(False)
                for device, dtype in self._autocast:
                    state.enter_context(torch.autocast(device, dtype))
                if self._device.type != "cpu":
                    state.enter_context(self._device)
                if not self._ended:
                    self._run()
        except Stopped:
            pass
        except BaseException as error:  # raised again by ``go_on``
            self._error = error
        finally:
            self.waits_for = None
            self._ended = True
            self._back.release()
