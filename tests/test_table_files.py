"""Tables for a paper, as CSV and LaTeX."""

import csv
import io

from ncclean.base.formats import Table
from ncclean.base.table_files import file_name, table_text

TABLE = Table(
    "found: AUROC, mean & deviation",
    ("rate", "score", "AUROC"),
    (("0.2", "neg_clip_loss", "0.915 ± 0.002"), ("40 %", 'a, "b"', "≥ 0.9")),
    left=2,
)


def test_csv_has_the_cells():
    rows = list(csv.reader(io.StringIO(table_text(TABLE, ".csv", "run"))))
    assert rows == [list(row) for row in (TABLE.heads, *TABLE.rows)]


def test_latex_has_a_tabular_of_booktabs():
    lines = table_text(TABLE, ".tex", "run").splitlines()
    assert lines[0] == "% made by ncclean run"
    assert lines[2:] == [
        r"\begin{tabular}{llr}",
        r"\toprule",
        r"rate & score & AUROC \\",
        r"\midrule",
        r"0.2 & neg\_clip\_loss & 0.915 $\pm$ 0.002 \\",
        r"40 \% & a, " + '"b"' + r" & $\ge$ 0.9 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_names_come_from_titles():
    assert file_name(TABLE) == "found-auroc-mean-deviation"
