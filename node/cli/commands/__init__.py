"""The sub-commands of ``prime-node``: one module each, a ``typer.Typer`` called ``app``.

They are found by name and imported when called (``node.cli.loading``); the first line of the
module's docstring is its line in ``prime-node --help``.
"""
