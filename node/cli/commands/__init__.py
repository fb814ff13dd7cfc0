"""Sub-commands of ``prime-node``: one module each, with a ``typer.Typer`` called ``app``.

``node.cli.loading`` finds them by name and imports them when called. The first line of a module's
docstring is its line in ``prime-node --help``.
"""
