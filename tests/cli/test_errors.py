"""Errors of the installation, in a sentence."""

import os
import subprocess
import sys

import pytest

from tests.hostile import JPEG


@pytest.mark.parametrize(
    "failure",
    [
        "RuntimeError('operator torchvision::nms does not exist')",
        "ImportError('libcudart.so.13: cannot open shared object file')",
        "AttributeError(\"module 'torchvision' has no attribute 'extension'\")",
    ],
)
def test_a_torchvision_that_does_not_fit_torch_is_named(tmp_path, failure):
    package = tmp_path / "packages" / "torchvision"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"raise {failure}\n")
    (tmp_path / "a.jpg").write_bytes(JPEG)
    (tmp_path / "a.txt").write_text("a caption")
    words = ["score", str(tmp_path), "--model", "demo", "--out", str(tmp_path / "s.parquet")]
    path = os.pathsep.join((str(package.parent), *filter(None, sys.path)))
    done = subprocess.run(
        [sys.executable, "-m", "ncclean_cli", *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "ncclean: torchvision does not fit torch (" in done.stderr
    assert done.stderr.rstrip().endswith("pip install --force-reinstall torch torchvision")
    assert "Traceback" not in done.stderr
