"""Results as one HTML page that needs no network: `Report`, and `gather`, which fills one from files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
