"""The subcommands of ``pointvar``: each file has ``configure(parser)`` and ``run(arguments)``.

Both are light: what is slow to import, torch before all, is imported in ``run``, so that help comes at once.
``TAKES_SETTINGS`` marks those that take the settings of a run as options; they are told only what is given.
"""
