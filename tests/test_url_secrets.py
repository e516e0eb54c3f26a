"""What of a URL may be printed and written."""

from __future__ import annotations

import json
import time

import pytest

from ncclean.base.url_secrets import name_without_secrets, values_without_secrets, without_secrets
from ncclean.base.visible_text import visible
from ncclean.errors import InputError, ResumeError, ShardError


@pytest.mark.parametrize(
    ("url", "printed", "name"),
    [
        ("http://u:p@h:80/x.tar", "http://***@h:80/x.tar", "http://h:80/x.tar"),
        ("https://token@h/x.tar", "https://***@h/x.tar", "https://h/x.tar"),
        ("http://u:p@ss@h/x", "http://***@h/x", "http://h/x"),
        ("http://u:p/ss@h/x", "http://***@h/x", "http://h/x"),
        ("http://u:p?ss@h/x", "http://***@h/x", "http://h/x"),
        ("http://:p@h/", "http://***@h/", "http://h/"),
        ("s3://key:secret@b/x", "s3://***@b/x", "s3://b/x"),
        ("zip://a::https://u:p@h/x", "zip://a::https://***@h/x", "zip://a::https://h/x"),
        ("h://h/x?sig=a%2B&se=1", "h://h/x?sig=***&se=***", "h://h/x"),
        ("h://h/x?id=5&X-Amz-Date=1", "h://h/x?id=5&X-Amz-Date=***", "h://h/x?id=5"),
        ("h://h/x?u=https://a:b@c", "h://h/x?u=***", "h://h/x"),
        ("h://h/x?q=0123456789abcdef01234567", "h://h/x?q=***", "h://h/x"),
        ("h://h/?0123456789abcdef01234567", "h://h/?***", "h://h/"),
        ("h://h/x#access_token=a", "h://h/x#access_token=***", "h://h/x#access_token=***"),
    ],
)
def test_secrets_are_hidden(url, printed, name):
    assert without_secrets(f"cannot read {url}") == f"cannot read {printed}"
    assert without_secrets(printed) == printed
    assert name_without_secrets(url) == name


@pytest.mark.parametrize(
    "url",
    [
        "a@b.tar", "u:p@h/x", "http://h:8080/a@b.tar", "http://[::1]:80/a@b", "sftp://me@h/x",
        "abfs://container@account.dfs.core.windows.net/x", "http://h/get?file=00001.tar&id=5",
        "http://h/x?versionId=0123456789abcdef01234567", "s3://b/{000..999}.tar", "s3://b/*?.tar",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(url):
    assert without_secrets(url) == url


def test_json_in_text_stays_json():
    inner = json.dumps({"url": "https://u:p@h/x?sig=1", "n": "https://h/x?token=2"})
    text = json.dumps({"a": inner, "b": ["http://h?sig=1", 3]})
    hidden = json.loads(without_secrets(text))
    assert json.loads(hidden["a"]) == {
        "url": "https://***@h/x?sig=***",
        "n": "https://h/x?token=***",
    }
    assert values_without_secrets(json.loads(text)) == hidden


@pytest.mark.parametrize(
    "piece", ["http://", "a://b:c", "://@", "://?", "&sig", "a+", "a://h?a=b&"]
)
def test_time_grows_with_the_text_alone(piece):
    begin = time.process_time()
    without_secrets("http://h?" + piece * 50_000)
    assert time.process_time() - begin < 2


@pytest.mark.parametrize("kind", [InputError, ShardError, ResumeError])
def test_no_error_repeats_a_secret(kind):
    assert str(kind("cannot read https://u:p@h/x")) == "cannot read https://***@h/x"


def test_keys_hold_no_secrets_either():
    values = {"https://u:p@h/x": ["https://u:p@h/y", 1]}
    assert values_without_secrets(values) == {"https://***@h/x": ["https://***@h/y", 1]}


# What may be printed.


@pytest.mark.parametrize("code", [0, 7, 13, 27, 0x7F, 0x9B, 0x202E, 0x2067, 0xFEFF, 0xD800])
def test_controls_are_spelled_out(code):
    assert visible(f"a{chr(code)}b") == f"a⟨U+{code:04X}⟩b"
    visible(f"a{chr(code)}b").encode()


def test_text_of_any_script_stays():
    text = "a\tred circle\n円 é \u200f\U0001f534"
    assert visible(text) == text
