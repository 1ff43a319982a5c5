"""Training with Lightning: from a configuration, or with your own trainer and the callback `VarianceInit`."""

from importlib.util import find_spec

import lazy_loader

if find_spec("lightning") is None:
    raise ImportError("training needs lightning: pip install 'pointvar[train]'")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
