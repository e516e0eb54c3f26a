"""Every table of measured numbers on the pages is what its records say."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
# Written from declarations by docs/generate.py.
GENERATED = ("cli.md", "schema.md")
PRINTED = "as a command printed it"


def load_figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_figures", ROOT / "docs" / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


FIGURES = load_figures()
PAGES = [page for page in FIGURES.pages() if page.name not in GENERATED]
RECORDS = sorted(FIGURES.RECORDS.glob("*.json"))


def tables(text: str) -> Iterator[str]:
    """The first line of each Markdown table; `PRINTED` for one that a command printed."""
    lines = text.splitlines()
    for line, below in itertools.pairwise(lines):
        if re.fullmatch(r" *\|[-: |]*-[-: |]*\|", below):
            yield line.strip()
        elif re.fullmatch(r"[─ ]+", below):
            yield PRINTED


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_says_what_its_records_say(page: Path) -> None:
    text = page.read_text("utf-8")
    assert FIGURES.rewritten(text) == text, "run: make docs-figures"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_table_of_measurements_has_a_record(page: Path) -> None:
    outside = FIGURES.BLOCK.sub("", page.read_text("utf-8"))
    assert not re.search(r"^<!-- /?figures", outside, re.MULTILINE), "a block lacks an end"
    assert not [*tables(outside)], "write a record and put the table into a block of figures"


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_record_says_how_it_was_made(path: Path) -> None:
    text = path.read_text("utf-8")
    record: dict[str, Any] = json.loads(text)
    for fact in ("command", "commit", "date", "machine", "seeds"):
        assert record[fact], f"{path.name} does not tell its {fact}"
    assert not re.search(r"[\"' =]/\w", text), f"{path.name} names a path of a machine"


def test_every_record_is_shown() -> None:
    text = "".join(page.read_text("utf-8") for page in PAGES)
    shown = [block["name"] for block in FIGURES.BLOCK.finditer(text)]
    used = {record for name in shown for record in FIGURES.FIGURES[name].records}
    assert {path.stem for path in RECORDS} == used


def test_a_block_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(name: str) -> dict[str, Any]:
        return {"x": name.upper(), "dirty": name == "b"}

    figure = FIGURES.Figure(("a", "b"), lambda a, b: [f"| {a['x']} |", f"| {b['x']} |"])
    monkeypatch.setattr(FIGURES, "read_record", record)
    page = "before\n<!-- figures: both -->\nold\n<!-- /figures -->\nafter\n"
    new = FIGURES.rewritten(page, {"both": figure})
    assert new == (
        "before\n<!-- figures: both -->\n\n| A |\n| B |\n\n"
        "Record: `docs/records/a.json`, `docs/records/b.json` (with uncommitted changes).\n\n"
        "<!-- /figures -->\nafter\n"
    )
    assert FIGURES.rewritten(new, {"both": figure}) == new
    with pytest.raises(KeyError):
        FIGURES.rewritten(page, {})


def row(arm: str, corpus: int, rsum: float, noise: float = 0.4) -> dict[str, Any]:
    return {"arm": arm, "corpus": corpus, "noise": {"ncr": noise}, "rsum": rsum, "colour": 0.5}


def test_differences_are_over_the_published_variant_of_their_method() -> None:
    rows = [
        *(row("clip on all", corpus, 90.0) for corpus in (1, 2, 3)),
        *(row("ncu, published", corpus, 100.0 + corpus) for corpus in (1, 2, 3)),
        *(row("ncu, released", corpus, 110.0 + 2 * corpus) for corpus in (1, 2, 3)),
        *(row("ncu: stop", corpus, 102.0) for corpus in (1, 2, 3)),
    ]
    # Gains of 11, 12, 13: half of the interval is 4.303 / sqrt(3) = 2.5 times their deviation.
    assert list(FIGURES.studies.released_lines({"rows": rows})) == [
        "- `ncu`: released over published +12.0 points of rsum (95 % interval +9.5 to +14.5); "
        "published over `clip` on all pairs +12.0 ± 1.0."
    ]


def test_gains_are_within_a_corpus_and_beside_other_metrics() -> None:
    rows = [
        row("clip on all", 0, 110.0),
        row("clip on all", 1, 130.0),
        row("ncu", 1, 137.0),
        row("ncu", 0, 112.0),
    ]
    lines = FIGURES.studies.gains_table("ncu", metrics=("colour",))({"rows": rows})
    assert list(lines) == [
        "| arm | rsum over clip on all | colour, % |",
        "|---|---|---|",
        "| clip on all |  | 50.0 ± 0.0 |",
        "| ncu | +4.5 ± 3.5 | 50.0 ± 0.0 |",
    ]


def test_an_arm_without_weights_is_said() -> None:
    arm = {"labels": "worse", "weights": "equal", "kept": 1.0, "wrong": 0.4, "accuracy": 0.5,
           "gain": 0.0, "gain_low": 0.0, "gain_high": 0.0}  # fmt: skip
    better = {**arm, "weights": "some", "gain": 0.02, "gain_low": 0.01, "gain_high": 0.03}
    rows = [arm, better, {"labels": "worse", "weights": "`osa_weight`", "refused": "all 0"}]
    assert list(FIGURES.studies.probe_line({"rows": rows})) == [
        "Points over equal weights: some +2.0 (+1.0 to +3.0); "
        "`osa_weight` refused: all weights are 0."
    ]


def test_gains_over_noise_are_within_a_corpus_and_a_noise() -> None:
    rows = [
        *(row("clip on all", corpus, 100.0 + corpus, 0.2) for corpus in (1, 2)),
        *(row("clip on all", corpus, 90.0 + corpus) for corpus in (1, 2)),
        *(row("rince", corpus, 103.0 + corpus, 0.2) for corpus in (1, 2)),
        row("rince", 1, 80.0),
    ]
    render = FIGURES.studies.noise_gains_table(("rince",), ("ncr 20 %", "ncr 40 %"))
    assert list(render({"rows": rows}))[2:] == ["| rince | +3.0 ± 0.0 | -11.0 |"]


def test_tables_over_noise_have_a_column_for_each() -> None:
    rows = [row("left alone", 0, 100.0, 0.2), row("left alone", 0, 90.0), row("clip", 0, 80.0)]
    assert list(FIGURES.studies.noise_table("ncr 20 %", "ncr 40 %")({"rows": rows})) == [
        "| arm | ncr 20 % | ncr 40 % |",
        "|---|---|---|",
        "| left alone | 100.0 | 90.0 |",
        "| clip |  | 80.0 |",
    ]
