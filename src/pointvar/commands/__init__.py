"""The commands of the command line, one module each: ``add_parser`` and ``run``."""
