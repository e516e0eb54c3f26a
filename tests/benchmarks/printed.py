r"""What the commands of a page print, for its blocks of output.

    python tests/benchmarks/printed.py docs/evaluation.md --commands 'synth|heldout|compare' \
        --record docs/records/evaluation.json

Runs the `ncclean` commands of the page's bash blocks one after another in a temporary folder. What
they write there besides is lost, but for what is named with `--keep`.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from command import NCCLEAN
from records import make_record, write_record

_WIDTH = 110


def commands(page: Path) -> Iterator[str]:
    """The lines of bash blocks that call ncclean, continued lines joined."""
    for block in re.findall(r"^```bash\n(.*?)^```", page.read_text("utf-8"), re.S | re.M):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("ncclean "):
                yield " ".join(line.split())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    parser.add_argument("--commands", default="", metavar="REGEX", help="only those that match")
    parser.add_argument("--keep", action="append", default=[], metavar="FILE")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="ncclean-printed-") as folder:
        for command in filter(re.compile(arguments.commands).search, commands(arguments.page)):
            done = subprocess.run(
                [*NCCLEAN, *shlex.split(command)[1:]],
                cwd=folder,
                env=os.environ | {"COLUMNS": str(_WIDTH), "NO_COLOR": "1"},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            rows.append({"command": command, "printed": done.stdout.splitlines()})
            print(f"$ {command}\n{done.stdout}", flush=True)
        for name in arguments.keep:
            shutil.copy(Path(folder, name), arguments.page.parent)
    if arguments.record is not None:
        write_record(arguments.record, make_record(rows, settings={"columns": _WIDTH}))


if __name__ == "__main__":
    main()
