import pytest
from hypothesis import given
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

from ncclean.data.member_names import split_name


@given(st.text(alphabet="ab./_\n", max_size=12))
def test_splits_as_webdataset_does(name: str):
    key, extension = base_plus_ext(name)
    assert split_name(name) == ((key, extension) if key is not None else (None, ""))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("000.jpg", ("000", "jpg")),
        ("a.b/000.seg.png", ("a.b/000", "seg.png")),
        ("../x.txt", ("../x", "txt")),
        (".hidden", (None, "")),
        ("a/.hidden", ("a/", "hidden")),
        ("no_extension", (None, "")),
    ],
)
def test_names(name: str, expected: tuple[str | None, str]):
    assert split_name(name) == expected
