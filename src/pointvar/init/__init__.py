"""Initialisations: weights that keep the variance of features constant through any depth, and baselines."""

from pointvar.init.baselines import authors_init, channel_init, standard_init, xavier_init
from pointvar.init.closed_form import activation_moment, closed_form_init
from pointvar.init.direct import data_dependent_init, lsuv_init, variance_init
from pointvar.init.report import InitReport, LayerInit
from pointvar.init.transfer import Table, compute_table, tables, transfer_init
from pointvar.layers import find_layers, register_layer

__all__ = [
    "InitReport",
    "LayerInit",
    "Table",
    "activation_moment",
    "authors_init",
    "channel_init",
    "closed_form_init",
    "compute_table",
    "data_dependent_init",
    "find_layers",
    "lsuv_init",
    "register_layer",
    "standard_init",
    "tables",
    "transfer_init",
    "variance_init",
    "xavier_init",
]
