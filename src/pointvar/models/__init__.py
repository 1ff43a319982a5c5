"""Networks: the paper's classifier and U-Net, PointConv's own, and a plain one of any depth."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
