"""`ncclean evaluate ...` of models as a user runs it."""

import json

import pytest
from ncclean_cli.app import app
from typer.testing import CliRunner

from ncclean.data.synthetic.heldout import write_heldout

FAST = ("--precision", "fp32", "--device", "cpu")


def run(*arguments):
    """In this process: starting one takes seconds."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def heldout(tmp_path_factory):
    out = tmp_path_factory.mktemp("heldout")
    write_heldout(out, 24, seed=5)
    return out


def test_two_models_in_one_table_then_compared(heldout, tmp_path):
    shape = heldout / "zeroshot-shape"
    command = ("evaluate", "zeroshot", "--data", shape, *FAST)
    shown = run(*command, "--model", "demo-noisy", "--model", "demo")
    assert shown.exit_code == 0, shown.stderr
    head = next(line.split() for line in shown.stdout.splitlines() if " metric " in line)
    assert head[-2:] == ["demo-noisy", "demo"]
    assert "mean_per_class_recall" in shown.stdout
    assert "demo: zeroshot-shape" in shown.stderr
    for name in ("demo-noisy", "demo"):
        out = tmp_path / f"{name}.json"
        written = run(*command, "--model", name, "--out", out, "--json")
        record = json.loads(written.stdout)["results"][0]
        assert json.loads(out.read_text())["metrics"] == record["metrics"]
    pair = (tmp_path / "demo-noisy.json", tmp_path / "demo.json")
    found = json.loads(run("evaluate", "compare", *pair, "--draws", 200, "--json").stdout)
    acc1 = found["comparisons"][0]["metrics"]["acc1"]
    assert acc1["excludes_zero"]
    assert acc1["difference"] == pytest.approx(acc1["b"] - acc1["a"])
    table = run("evaluate", "compare", *pair, "--draws", 200)
    line = next(line for line in table.stdout.splitlines() if " acc1 " in line)
    assert line.rstrip().endswith("*")
    assert "zeroshot-shape (24)" in line


def test_retrieval_similarity_and_probe_answer_in_json(heldout, tmp_path):
    data = ("--model", "demo", "--data", heldout, *FAST, "--json", "--quiet")
    retrieval = run("evaluate", "retrieval", *data)
    assert json.loads(retrieval.stdout)["results"][0]["metrics"]["rsum"] > 500
    assert retrieval.stderr == ""
    probe = run("evaluate", "linear-probe", *data, "--solver", "adamw", "--epochs", 2)
    assert len(json.loads(probe.stdout)["results"]) == 4
    figure = tmp_path / "f.pdf"
    pairs = ("--data", heldout / "retrieval", "--plot", figure, *FAST)
    both = run("evaluate", "similarity", "--model", "demo-noisy", "--against", "demo", *pairs)
    assert both.exit_code == 0, both.stderr
    assert "own captions beat the hardest others" in both.stdout
    assert figure.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("zeroshot", "--model", "demo", "--data", "{}/no"), "does not exist"),
        (("zeroshot", "--model", "demo", "--data", "{}/retrieval"), "use `evaluate retr"),
        (("retrieval", "--model", "demo", "--data", "{}/zeroshot-count"), "use `evaluate z"),
        (("linear-probe", "--model", "demo", "--data", "{}", "--solver", "sgd"), "--solver takes"),
        (("compare", "{}", "{}"), "names no result"),
        (("zeroshot", "--model", "demmo", "--data", "{}"), "did you mean demo or"),
        (
            ("retrieval", "--model", "demo", "--data", "{}", *("--pretrained", "a") * 2),
            "2 --pretrained for 1 --model",
        ),
    ],
)
def test_mistakes_are_one_sentence(heldout, arguments, message):
    result = run("evaluate", *(str(a).format(heldout) for a in arguments))
    assert result.exit_code == 2
    lines = [line for line in result.stderr.splitlines() if line.startswith("ncclean: ")]
    assert len(lines) == 1
    assert message in lines[0]
