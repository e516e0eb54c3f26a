"""Hostile captions as harmless text."""

import time

import pytest

from ncclean.report.formats import shown_text
from tests.report.tables import HOSTILE


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a red circle", "a red circle"),
        ("  a \n\t red  ", "a red"),
        ("<b>&amp;", "<b>&amp;"),  # escaping is the template's work
        ("exe\u202egpj", "exe⟨U+202E⟩gpj"),
        ("\u2067x\u2069", "⟨U+2067⟩x⟨U+2069⟩"),
        ("\u200fدائرة", "\u200fدائرة"),
        ("a\x00b\x1bc\x7f", "a⟨U+0000⟩b⟨U+001B⟩c⟨U+007F⟩"),
        ("a\u2028b", "a⟨U+2028⟩b"),
        ("", ""),
    ],
)
def test_control_characters_become_visible(text, shown):
    assert shown_text(text, 1000) == (shown, 0)


def test_long_text_is_cut_and_the_rest_counted():
    assert shown_text("abcdef", 4) == ("abcd", 2)
    assert shown_text("ééé", 4) == ("éé", 1)
    shown, left_out = shown_text("x" * 1_000_000, 2000)
    assert len(shown) == 2000
    assert left_out == 998_000


def test_a_megabyte_takes_no_time():
    begin = time.process_time()
    for text in HOSTILE.values():
        assert len(shown_text(text, 2000)[0].encode()) <= 2000
    assert time.process_time() - begin < 0.5
