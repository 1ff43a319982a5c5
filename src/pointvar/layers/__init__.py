"""The layers of a model, ours and anyone's: which there are, what they multiply, how they are fed and seen.

Used by whatever sets (``init``), measures (``diagnose``) or clips (``train``) them.
"""

from pointvar.layers.clouds import Clouds, between_clouds
from pointvar.layers.find import (
    Claims,
    Layer,
    Select,
    candidates,
    channels_last,
    check_model,
    fill_normal,
    find_layers,
    is_norm,
    nothing_to_set,
    outermost,
    predicate,
    uncompiled,
)
from pointvar.layers.kinds import Kind, pointwise, register_layer
from pointvar.layers.passes import (
    Forward,
    as_batches,
    devices_of,
    feed,
    first_tensor,
    forked_random,
    restored,
    size_of,
)
from pointvar.layers.streams import Streams, find_streams, identity_size

__all__ = [
    "Claims",
    "Clouds",
    "Forward",
    "Kind",
    "Layer",
    "Select",
    "Streams",
    "as_batches",
    "between_clouds",
    "candidates",
    "channels_last",
    "check_model",
    "devices_of",
    "feed",
    "fill_normal",
    "find_layers",
    "find_streams",
    "first_tensor",
    "forked_random",
    "identity_size",
    "is_norm",
    "nothing_to_set",
    "outermost",
    "pointwise",
    "predicate",
    "register_layer",
    "restored",
    "size_of",
    "uncompiled",
]
