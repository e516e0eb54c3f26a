"""The example of docs/objectives.md trains."""

import math
import re
from pathlib import Path

from ncclean.training.objectives.base import whole_model
from ncclean.training.run_files import read_results
from tests.training.batches import train

PAGE = Path(__file__).resolve().parents[2] / "docs" / "objectives.md"


def test_the_example_of_the_documentation_trains(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    scope: dict[str, object] = {}
    exec(compile(code, str(PAGE), "exec"), scope)
    train(tmp_path, objective=scope["Rotated"](whole_model(1e-3, 1)))
    results = read_results(tmp_path)
    assert len(results) == 4
    for record in results:
        assert math.isfinite(record["loss/centre"])
        assert record["loss"] > record["loss/contrastive"]
