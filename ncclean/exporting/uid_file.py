"""Write DataComp's subset file: the uids of a selection as a numpy array."""

from __future__ import annotations

from typing import Any

import numpy as np
from upath import UPath

from ncclean.base.atomic import published
from ncclean.base.output_mark import npy_header
from ncclean.errors import InputError
from ncclean.exporting.export import ExportSummary
from ncclean.exporting.plan import WRITTEN, open_selection
from ncclean.selection.fixed_selection import check_fixes
from ncclean.storage.catalog import columns_of


def export_uids(selection: str, out: UPath, fixes: str | None = None) -> ExportSummary:
    """Write DataComp's subset file: the uids, sorted, as a numpy array of `u8,u8`.

    Each uid is the first and the last 64 bits of its 32 hex digits, repeated as often as its pair
    was drawn, which DataComp's resharder follows. Raises `InputError` if one is not 32 hex digits.
    """
    connection = open_selection(selection, fixes)
    if fixes is not None:
        check_fixes(connection, columns_of(connection, "selected"), selection)
    odd = connection.execute(
        "SELECT uid FROM scores WHERE NOT regexp_full_match(uid, '[0-9a-fA-F]{32}') LIMIT 1"
    ).fetchall()
    if odd:
        raise InputError(f"a uid file takes uids of 32 hex digits; {selection} has {odd[0][0]!r}")
    # One entry finds all samples with the same uid.
    uids = f"""SELECT uid, max(times)::BIGINT AS times FROM (
        SELECT lower(uid) AS uid, sum({WRITTEN}) AS times FROM scores
        GROUP BY lower(uid), shard, key) GROUP BY uid"""
    (count,) = connection.execute(
        f"SELECT coalesce(sum(times), 0)::BIGINT FROM ({uids})"
    ).fetchall()[0]
    reader: Any = connection.sql(
        f"""SELECT ('0x' || uid[1:16])::UBIGINT AS f0, ('0x' || uid[17:32])::UBIGINT AS f1
        FROM ({uids}) AS uids, range(uids.times) ORDER BY f0, f1"""
    ).to_arrow_reader(1_000_000)
    with published(out) as aside:
        with open(aside, "wb") as stream:
            header = {"descr": [("f0", "<u8"), ("f1", "<u8")], "fortran_order": False,
                      "shape": (count,)}  # fmt: skip
            stream.write(npy_header(header, "export"))
            for batch in reader:
                rows = np.empty(len(batch), dtype="<u8,<u8")
                rows["f0"], rows["f1"] = (batch.column(name).to_numpy() for name in ("f0", "f1"))
                stream.write(rows.tobytes())
        size = aside.stat().st_size
    (mended,) = connection.execute(
        "SELECT count(*) FROM scores WHERE list_any_value(mended) IS NOT NULL"
    ).fetchall()[0]
    return ExportSummary(
        shards=0, samples=count, bytes=size, out=str(out), mended_lost=int(mended), layout="uids"
    )
