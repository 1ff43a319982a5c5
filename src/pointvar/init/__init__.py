"""Initialisations: weights that keep the variance of features constant through any depth, and baselines."""

import lazy_loader

from pointvar.moved import moved

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = moved(
    __name__, {"find_layers": "pointvar.layers", "register_layer": "pointvar.layers"}, __getattr__
)
