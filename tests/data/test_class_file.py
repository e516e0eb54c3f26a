"""CyCLIP's classes.py: read, and never run."""

import pytest

from ncclean.data.class_file import read_class_file
from ncclean.errors import InputError


def read(tmp_path, text):
    path = tmp_path / "classes.py"
    path.write_text(text)
    return read_class_file(str(path))


def test_the_dictionary_that_cyclip_evaluates(tmp_path):
    found = read(
        tmp_path,
        '{\n    "classes": ["tench", "kite (bird of prey)", "tench"],\n'
        '    "superclasses": [["tench"], ["kite"], 3],\n'
        '    "templates": [lambda s: f"a bad photo of a {s}.", lambda c: f"{c}, a " '
        'f"type of {c}.",'
        ' lambda s: f"itap of {{my}} {s}."]\n}',
    )
    assert found.classes == ["tench", "kite (bird of prey)", "tench"]
    assert found.templates == [
        "a bad photo of a {c}.", "{c}, a type of {c}.", "itap of {my} {c}."
    ]  # fmt: skip


def test_assignments_and_format_strings(tmp_path):
    found = read(
        tmp_path,
        '"""Pets."""\nclasses = ("cat", "dog")\ntemplates = ["a {}.", "the {c}", "{0}!", '
        'lambda s: "my {}".format(s)]\n',
    )
    assert found.classes == ["cat", "dog"]
    assert found.templates == ["a {c}.", "the {c}", "{c}!", "my {c}"]


SET = '{{"classes": ["a"], "templates": [{}]}}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('__import__("os").system("true")', "line 1: neither a dictionary"),
        ('import os\nclasses = ["a"]', "line 1: neither a dictionary"),
        ('classes = open("x").read()\ntemplates = ["{}"]', "line 1: not a literal"),
        ('{"classes": [x for x in "ab"], "templates": ["{}"]}', "not a literal"),
        ('{"classes": ["a"], "other": print(1), "templates": ["{}"]}', "not a literal"),
        ('{"classes": ["a", 2], "templates": ["{}"]}', "not a text"),
        ('{"classes": [], "templates": ["{}"]}', "not a list with something in it"),
        ('{"classes": "ab", "templates": ["{}"]}', "not a list"),
        ('{"classes": ["a"]}', "has no 'templates'"),
        ("", "has no 'classes'"),
        ('{**{"classes": ["a"]}}', "a key that is not a text"),
        (SET.format('lambda s: print(s) or f"{s}"'), "without a place for the name"),
        (SET.format('lambda s: f"{print(s)}"'), "holds more than {s}"),
        (SET.format('lambda s: f"{s.__class__}"'), "holds more than {s}"),
        (SET.format('lambda s: f"{s!r}"'), "holds more than {s}"),
        (SET.format('lambda s: f"{s:>99999999}"'), "holds more than {s}"),
        (SET.format('lambda s: f"{t}"'), "holds more than {s}"),
        (SET.format('lambda s, t=open("x"): f"{s}"'), "takes one argument"),
        (SET.format('lambda *s: f"{s}"'), "takes one argument"),
        (SET.format('lambda s: open("{}").format(s)'), "not a text"),
        (SET.format('lambda s: "{}".join(s)'), "a call that is not"),
        (SET.format('lambda s: "{}".format(t)'), "a call that is not"),
        (SET.format('lambda s: f"the {{c}} {s}"'), "as text"),
        (SET.format('"a photo"'), "without a place for the name"),
        (SET.format('"{0.__class__}"'), "a prompt with {0.__class__}"),
        (SET.format('"{:>999999}"'), "a prompt with {}"),
        (SET.format('"{"'), "is not Python"),
        ("{", "is not Python"),
        ("\0", "is not Python"),
        ("[" * 500, "is not Python|nested too deeply"),
        ('{"classes": ' + "-" * 60_000 + "1}", "not a literal|nested too deeply|is not Python"),
    ],
)
def test_anything_else_is_refused(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, text)
    assert "classes.py" in str(caught.value)
