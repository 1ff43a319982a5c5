"""Data sets: samples and batches, synthetic data, readers for public sets and for a user's own files."""

from pointvar.data.sample import Batch, Sample, collate
from pointvar.data.synthetic import Shapes

__all__ = ["Batch", "Sample", "Shapes", "collate"]
