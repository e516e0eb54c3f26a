"""Where an export puts its files."""

from __future__ import annotations

from upath import UPath

from ncclean.exporting.out_layout import OutLayout, Targets


def test_what_lies_beside_an_output_of_one_file_is_hidden(tmp_path):
    """Loaders of the folder take every file for data, unless a name on its way has a dot."""
    out = UPath(tmp_path / "data" / "validation.parquet")
    targets = Targets(OutLayout("parquet", table=".parquet"), out, 5, ("",))
    assert targets.tables == [out]
    for path in (targets.stats(0), *targets.data(), targets.work / "x"):
        first, *_ = path.relative_to(out.parent).parts
        assert first.startswith(".")
    other = Targets(OutLayout("parquet", table=".parquet"), out.with_name("train.parquet"), 5)
    assert other.work != targets.work
