"""`make quick` finds the tests of a changed file, and keeps to its time."""

import subprocess
import sys

import pytest

from tests.quick import ROOT, covering_tests, imported_modules


def test_tests_of_planted_breaks_come_first_then_the_nearest():
    imports = {
        "tests/pipelines/test_score.py": {"ncclean.scoring.null"},
        "tests/scoring/test_null.py": {"ncclean.scoring.null", "ncclean.scoring"},
        "tests/scoring/test_blocks.py": {"ncclean.scoring.blocks"},
    }
    named = {"ncclean/scoring/null.py": ["tests/test_rules.py"]}
    assert covering_tests("ncclean/scoring/null.py", named, imports) == [
        "tests/test_rules.py",
        "tests/scoring/test_null.py",
        "tests/pipelines/test_score.py",
    ]


def test_tests_of_what_imports_a_module_come_after_its_own():
    imports = {
        "tests/pipelines/test_score.py": {"ncclean_pipelines.score"},
        "tests/scoring/test_null.py": {"ncclean.scoring.null"},
        "tests/test_docs.py": {"ncclean.errors"},
        "pipelines/score.py": {"ncclean.scoring"},
        "ncclean/scoring/__init__.py": {"ncclean.scoring.null"},
        "ncclean/scoring/null.py": {"ncclean.errors"},
    }
    assert covering_tests("ncclean/scoring/null.py", {}, imports) == [
        "tests/scoring/test_null.py",
        "tests/pipelines/test_score.py",
    ]


def test_modules_are_found_however_they_are_imported(tmp_path):
    path = tmp_path / "test_it.py"
    path.write_text("import ncclean.errors\nfrom ncclean.base import stores\n")
    assert imported_modules(path) == {"ncclean.errors", "ncclean.base", "ncclean.base.stores"}


@pytest.mark.slow
def test_the_tests_end_when_their_time_is_over():
    words = [sys.executable, "tests/quick.py", "--since", "HEAD", "--seconds", "0"]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout
    assert "0 files of tests" in result.stdout or "the time is over" in result.stdout
