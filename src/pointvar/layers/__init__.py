"""The layers of a model, ours and anyone's: which there are, what they multiply, how they are fed and seen.

Used by whatever sets (``init``), measures (``diagnose``) or clips (``train``) them.
"""

from pointvar.layers.find import (
    Claims,
    Layer,
    Select,
    candidates,
    channels_last,
    find_layers,
    nothing_to_set,
    outermost,
    predicate,
    refuse_lazy,
)
from pointvar.layers.kinds import Kind, register_layer
from pointvar.layers.passes import Forward, as_batches, devices_of, feed, restored, size_of

__all__ = [
    "Claims",
    "Forward",
    "Kind",
    "Layer",
    "Select",
    "as_batches",
    "candidates",
    "channels_last",
    "devices_of",
    "feed",
    "find_layers",
    "nothing_to_set",
    "outermost",
    "predicate",
    "refuse_lazy",
    "register_layer",
    "restored",
    "size_of",
]
