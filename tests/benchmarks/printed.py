r"""What the commands of a page print, for its blocks of output.

    python tests/benchmarks/printed.py --page docs/evaluation.md \
        --commands 'synth|heldout|compare' --record docs/records/evaluation.json

Runs the `ncclean` commands of the page's bash blocks one after another in a temporary folder.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from process import NCCLEAN
from records import Row, benchmark

_WIDTH = 110


def commands_of(page: Path) -> Iterator[str]:
    """The lines of bash blocks that call ncclean, continued lines joined."""
    for block in re.findall(r"^```bash\n(.*?)^```", page.read_text("utf-8"), re.S | re.M):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("ncclean "):
                yield " ".join(line.split())


def printed(page: Path, commands: str = "") -> Iterator[Row]:
    """A row for each command of a page that matches a regular expression."""
    with tempfile.TemporaryDirectory(prefix="ncclean-printed-") as folder:
        for command in filter(re.compile(commands).search, commands_of(page)):
            done = subprocess.run(
                [*NCCLEAN, *shlex.split(command)[1:]],
                cwd=folder,
                env=os.environ | {"COLUMNS": str(_WIDTH), "NO_COLOR": "1"},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            yield {"command": command, "printed": done.stdout.splitlines()}


if __name__ == "__main__":
    benchmark(printed, columns=_WIDTH)
