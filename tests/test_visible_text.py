"""What may be printed."""

import pytest

from ncclean.base.visible_text import visible


@pytest.mark.parametrize("code", [0, 7, 13, 27, 0x7F, 0x9B, 0x202E, 0x2067, 0xFEFF, 0xD800])
def test_controls_are_spelled_out(code):
    assert visible(f"a{chr(code)}b") == f"a⟨U+{code:04X}⟩b"
    visible(f"a{chr(code)}b").encode()


def test_text_of_any_script_stays():
    text = "a\tred circle\n円 é \u200f\U0001f534"
    assert visible(text) == text
