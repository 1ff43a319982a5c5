"""The initialisations by name, as a configuration has them. A new one is a line here, and a file of its own.

An entry is called with the model and, by name, with whichever of these it has parameters for: ``batches``
(training batches to measure on), ``forward``, ``layers`` and ``generator`` as for ``variance_init``,
``target`` (second moment that each layer's output is to have), ``center`` and ``dropout`` (as for
``variance_init``), ``table`` (a table of z, by name or file) and ``input_moment`` (second moment of the input
features). It gives an `InitReport`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pointvar.registry import Registry

if TYPE_CHECKING:
    from pointvar.init.report import InitReport

INITS: Registry[Callable[..., InitReport]] = Registry(
    "initialisation",
    {
        "direct": "pointvar.init.direct:variance_init",
        "transfer": "pointvar.init.transfer:transfer_init",
        "closed": "pointvar.init.closed_form:closed_form_of_model",
        "standard": "pointvar.init.baselines:standard_init",
        "authors": "pointvar.init.baselines:authors_init",
        "xavier": "pointvar.init.baselines:xavier_init",
        "lsuv": "pointvar.init.direct:lsuv_init",
        "data-dependent": "pointvar.init.direct:data_dependent_init",
        "none": "pointvar.init.baselines:no_init",
    },
)
