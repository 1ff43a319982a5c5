"""Networks: a plain one of any depth, the paper's classifier."""

from pointvar.models.classifier import Classifier
from pointvar.models.layers import Method
from pointvar.models.plain import PlainNet

__all__ = ["Classifier", "Method", "PlainNet"]
