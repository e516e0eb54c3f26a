"""Reads rows of Lance data sets in a process of its own: of damaged files its library may abort.

A panic of the library is an exception, but one that meets another panic ends the process, and with
it whatever else ran there. What goes wrong is one line of standard error; the library's own words
about a panic, hundreds of lines, are not passed on.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import pyarrow as pa

from ncclean.errors import ShardError, one_line
from ncclean.isolated import isolated


@dataclass(frozen=True)
class LanceRequest:
    """Rows `first` to `last` of some columns, in batches of about `batch_rows`.

    Of the data set's `version`; without, of the latest when the rows are read.
    """

    url: str
    columns: Sequence[str]
    first: int
    last: int
    batch_rows: int
    version: int | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows in order, in another process.

        Raises `ShardError` if they cannot be read.
        """
        with subprocess.Popen(
            isolated(__name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as reader:
            assert reader.stdin
            assert reader.stdout
            assert reader.stderr
            cut_off = ""
            try:
                reader.stdin.write(json.dumps(dataclasses.asdict(self)).encode())
                reader.stdin.close()
                try:
                    yield from pa.ipc.open_stream(reader.stdout)
                except (pa.ArrowInvalid, OSError) as error:
                    cut_off = one_line(error)
                # A stream may look whole though the reader failed: its status tells.
                problem = reader.stderr.read().decode("utf-8", "replace")
                status = reader.wait()
                if status or cut_off:
                    raise ShardError(
                        problem or cut_off or f"its library ended the reader ({status})"
                    )
            finally:
                reader.kill()


def write_rows(request: LanceRequest, out: IO[bytes]) -> None:
    """Write the rows of a request as a stream of Arrow batches."""
    import lance

    scanner = lance.dataset(request.url, version=request.version).scanner(
        columns=list(request.columns), offset=request.first, limit=request.last - request.first,
        batch_size=request.batch_rows, scan_in_order=True, blob_handling="all_binary",
    )  # fmt: skip
    batches = scanner.to_reader()
    with pa.ipc.new_stream(out, batches.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def main() -> None:
    """Answer the request on standard input."""
    problems = os.fdopen(os.dup(2), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    request = LanceRequest(**json.load(sys.stdin))
    try:
        write_rows(request, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except BaseException as error:  # a panic is no `Exception`
        problems.write(one_line(error))
        problems.flush()
        os._exit(1)
