"""Results as one HTML page that needs no network: `Report`, and `gather`, which fills one from files."""

from pointvar.report.page import Report
from pointvar.report.sources import gather

__all__ = ["Report", "gather"]
