"""What Ray's errors become in a message."""

import pytest

from ncclean.runners.ray_cluster import one_line


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("no  such\taddress", "no such address"),
        ("", ""),
        (
            "failed: \x1b[36mray::Worker\x1b[39m\n  File x\n    ^^^^\nModuleNotFoundError: p\n",
            "failed: ray::Worker ... ModuleNotFoundError: p",
        ),
    ],
)
def test_the_beginning_and_the_end_of_a_traceback(said, shown):
    assert one_line(RuntimeError(said)) == shown


def test_more_of_the_end_of_a_traceback():
    error = RuntimeError("ray::score 7()\n  File a\n    x = y\n  File b\n    y = z\nKeyError: z\n")
    assert one_line(error, last=3) == "ray::score 7() ... File b ... y = z ... KeyError: z"
