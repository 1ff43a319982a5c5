"""The subcommands of ``pointvar``: each file has ``configure(parser)`` and ``run(arguments)``."""
