"""Tables as files for a paper: CSV, or a LaTeX tabular with the rules of booktabs."""

from __future__ import annotations

import csv
import io
import re

from ncclean._version import __version__
from ncclean.base.formats import Table
from ncclean.base.output_mark import mark

_SIGNS = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "≥": r"$\ge$", "≤": r"$\le$", "→": r"$\to$", "×": r"$\times$",
}  # fmt: skip


def file_name(table: Table) -> str:
    """A name for the file of a table, from its title."""
    return re.sub(r"[^a-z0-9]+", "-", table.title.lower()).strip("-")[:80] or "table"


def table_text(table: Table, ending: str, command: str) -> str:
    """A table that a command has made, as the text of a file with one of `TABLE_ENDINGS`."""
    return _csv(table) if ending == ".csv" else _latex(table, command)


def _csv(table: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.heads)
    writer.writerows(table.rows)
    return text.getvalue()


def _latex(table: Table, command: str) -> str:
    columns = "l" * table.left + "r" * (len(table.heads) - table.left)
    heads, *rows = (
        " & ".join("".join(_SIGNS.get(sign, sign) for sign in cell) for cell in row) + r" \\"
        for row in (table.heads, *table.rows)
    )
    begin = rf"\begin{{tabular}}{{{columns}}}"
    comments = f"% {mark(command)}", f"% {' '.join(table.title.split())}, by ncclean {__version__}"
    end = r"\bottomrule", r"\end{tabular}", ""
    return "\n".join((*comments, begin, r"\toprule", heads, r"\midrule", *rows, *end))
