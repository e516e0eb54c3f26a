"""Options by their recipe names on the command line."""

import pytest
from pipelines.recipe.settings import with_settings

from ncclean.errors import InputError
from pipelines.finetune import FinetuneRequest

REQUEST = FinetuneRequest(method="bayes", shards=["a"], out="b")


def test_values_are_set_where_they_belong_and_nowhere_else():
    found = with_settings(
        "finetune", REQUEST,
        ["a_neg=20", "b_pos=1e-3", "betas=[0.9, 0.95]", "disncl_gamma=0.1", "soften=no", "seed=3"],
    )  # fmt: skip
    assert found.objective.bayes.a_neg == 20.0
    assert found.objective.bayes.b_pos == 1e-3
    assert found.objective.disncl.gamma == 0.1
    assert found.objective.ncu.gamma == REQUEST.objective.ncu.gamma
    assert found.objective.disncl.soften is False
    assert found.training.betas == (0.9, 0.95)
    assert found.loader.seed == found.training.seed == 3
    assert REQUEST.objective.bayes.a_neg == 10.0


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("a_neg", "takes NAME=VALUE, got 'a_neg'"),
        ("a_nef=2", r"no option 'a_nef' \(did you mean a_neg\?\)"),
        ("a_neg=many", "--set a_neg: input should be a valid number.*got 'many'"),
        ("a_neg=-1", "a_neg must be positive"),
        ("negative=none", "input should be 'prompt' or 'prefixes', got 'none'"),
        ("betas=[1", "--set betas: not YAML"),
    ],
)
def test_what_does_not_fit_is_said(setting, said):
    with pytest.raises(InputError, match=said):
        with_settings("finetune", REQUEST, [setting])
