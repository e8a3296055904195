"""`gemmaspec config`."""

from __future__ import annotations

from gemmaspec.cli import options, output


def config(json: options.Json = False) -> None:
    """Print the folders that gemmaspec uses and the variables that it reads, with their current values.

    Values of secrets are not printed.
    """
    from gemmaspec.cli.text import table
    from gemmaspec.deploy.views.config import settings

    found = list(settings())
    if json:
        output.json_data({"settings": list(found)})
        return
    columns = (table.Column("NAME"), table.Column("VALUE"), table.Column("MEANING", rank=1, wraps=True))
    for kind in ("folder", "variable"):
        rows = [(one.name, one.value or "-", one.meaning) for one in found if one.kind == kind]
        table.show((table.Column(kind.upper()), *columns[1:]), rows)
        output.data("") if kind == "folder" else None
