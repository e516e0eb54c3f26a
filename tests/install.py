"""Installs the wheel into empty environments and runs what a newcomer runs first.

    python tests/install.py 3.10 3.11 3.12 3.13
    python tests/install.py 3.10 --lowest --tests
    python tests/install.py 3.12 --torch cpu

Needs `uv`, and its settings: an index, a cache, where Pythons are. `--lowest` takes the lowest
versions that pyproject.toml allows in place of the newest, `--torch cpu` PyTorch's CPU builds,
`--tests` runs the fast tests as well. Prints a line of JSON for each environment: its size,
the versions of torch and numpy, the seconds of each command and what failed. An environment is
removed afterwards unless `--keep` is given.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TESTS = ["-m", "pytest", "-q", "-m", "not slow", "-n", "2", "--dist", "loadfile"]


def readme_commands() -> list[str]:
    """The first two commands of ncclean in the README."""
    text = (ROOT / "README.md").read_text("utf-8")
    return re.findall(r"^ncclean (?:synth|clean) .*$", text, re.M)[:2]


def build(folder: Path) -> Path:
    """Build an sdist, and a wheel from it: what the sdist lacks, the wheel lacks too."""
    run(["uv", "build", "--quiet", "--out-dir", str(folder), str(ROOT)])
    return next(folder.glob("*.whl"))


def run(command: Sequence[str], **settings: Any) -> None:
    """Run a command. Raises `CalledProcessError`, with what it printed, if it fails."""
    subprocess.run(command, check=True, text=True, **settings)


def install(wheel: Path, place: Path, arguments: argparse.Namespace, version: str) -> Path:
    """Make an environment with the wheel; returns its Python."""
    run(["uv", "venv", "--quiet", "--python", version, str(place)])
    python = place / "bin/python"
    torch = ["--torch-backend", arguments.torch] if arguments.torch else []
    extra = "[test]" if arguments.tests else ""
    wanted = place / "requirements.txt"
    if not arguments.lowest:
        wanted.write_text(f"ncclean{extra} @ {wheel.as_uri()}\n")
    else:
        # Of the tree, as only its direct dependencies are taken as low as they may be.
        lowest = [
            "--resolution",
            "lowest-direct",
            "--only-binary",
            ":all:",
            *(["--extra", "test"] if extra else []),
        ]
        run(["uv", "pip", "compile", "--quiet", "--python", str(python), *lowest, *torch,
             "--output-file", str(wanted), str(ROOT / "pyproject.toml")])  # fmt: skip
        lines = [line for line in wanted.read_text().splitlines() if line[:7] != "ncclean"]
        wanted.write_text("\n".join([*lines, f"ncclean @ {wheel.as_uri()}"]))
    run(["uv", "pip", "install", "--quiet", "--python", str(python), *torch, "-r", str(wanted)])
    return python


def disk_bytes(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def check(python: Path, commands: Sequence[str], folder: Path) -> dict[str, float | str]:
    """Run commands in an empty folder; their seconds, or the end of what a failure printed."""
    outcome: dict[str, float | str] = {}
    paths = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "PYTHONPATH": ""}
    for command in commands:
        begin = time.monotonic()
        done = subprocess.run(
            shlex.split(command), cwd=folder, env=paths, capture_output=True, text=True
        )
        seconds = round(time.monotonic() - begin, 1)
        failure = (done.stdout + done.stderr)[-2000:]
        outcome[command] = seconds if done.returncode == 0 else f"failed: {failure}"
    return outcome


def one_environment(version: str, wheel: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    place = Path(tempfile.mkdtemp(prefix="ncclean-", dir=arguments.folder))
    try:
        begin = time.monotonic()
        python = install(wheel, place / "env", arguments, version)
        seconds = time.monotonic() - begin
        listing = subprocess.run(
            ["uv", "pip", "list", "--format", "json", "--python", str(python)],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        versions = {package["name"]: package["version"] for package in json.loads(listing)}
        work = place / "work"
        work.mkdir()
        commands = ["ncclean --version", "ncclean --help", *readme_commands()]
        outcome = check(python, [*commands, "ncclean demo --pairs 2000"], work)
        if arguments.tests:  # of the tree, with the versions of this environment
            outcome |= check(python, [shlex.join([str(python), *TESTS])], ROOT)
        return {
            "python": version,
            "versions": "lowest" if arguments.lowest else "newest",
            "torch": versions["torch"],
            "numpy": versions["numpy"],
            "packages": len(versions),
            "gigabytes": round(disk_bytes(place / "env") / 1e9, 2),
            "install_seconds": round(seconds, 1),
            "commands": outcome,
        }
    finally:
        if not arguments.keep:
            shutil.rmtree(place)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pythons", nargs="+", metavar="PYTHON", help="versions or paths")
    parser.add_argument("--lowest", action="store_true", help="lowest versions of dependencies")
    parser.add_argument("--torch", metavar="BACKEND", help="as uv's --torch-backend, such as cpu")
    parser.add_argument("--tests", action="store_true", help="also run the fast tests")
    parser.add_argument("--keep", action="store_true", help="keep the environments")
    parser.add_argument("--folder", help="where environments are made; default: temporary")
    arguments = parser.parse_args()
    is_good = True
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        for version in arguments.pythons:
            outcome = one_environment(version, wheel, arguments)
            print(json.dumps(outcome, indent=2), flush=True)
            is_good &= all(isinstance(value, float) for value in outcome["commands"].values())
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
