"""Results as one HTML page that needs no network: `Report`, and `gather`, which fills one from files."""

from pointvar.report.folders import gather
from pointvar.report.page import Report

__all__ = ["Report", "gather"]
