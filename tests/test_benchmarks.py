"""The benchmarks run: what they call changes, and nobody runs them every day."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "benchmarks" / "run.py"


@pytest.mark.slow
def test_all_run_and_are_in_the_file(tmp_path):
    record = tmp_path / "benchmarks.json"
    command = [sys.executable, str(SCRIPT), "--quick", "--json", str(record)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    ran = re.findall(r"^(\S+) \.\.\.$", done.stderr, re.MULTILINE)
    rows = json.loads(record.read_text())["rows"]
    assert ran == list(dict.fromkeys(row["benchmark"] for row in rows))
