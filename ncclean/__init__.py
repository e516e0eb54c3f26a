"""ncclean: find, remove and repair the damage of mismatched image-text pairs.

`ncclean.score(...)`, `ncclean.select(...)` and so on are the commands as functions, made from their
declarations (`ncclean_pipelines.functions`) when one is first used: importing `ncclean` stays
instant. `__init__.pyi` tells editors and type checkers what they take. `ncclean.webdataset` brings
a selection into a training loop.
"""

import importlib
from typing import Any

from ncclean._version import __version__

__all__ = [
    "__version__",
    "adapt",
    "annotate",
    "audit",
    "clean",
    "demo",
    "evaluate",
    "evaluate_compare",
    "evaluate_disentanglement",
    "evaluate_judgements",
    "evaluate_linear_probe",
    "evaluate_noise",
    "evaluate_retrieval",
    "evaluate_similarity",
    "evaluate_zeroshot",
    "explain",
    "export",
    "finetune",
    "inject_noise",
    "merge",
    "neighbours",
    "query",
    "review",
    "run",
    "score",
    "select",
    "synth",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name == "webdataset":
        return importlib.import_module("ncclean.webdataset")
    if name.startswith("_") or name not in __all__:
        hint = "; `ncclean report` is ncclean.write_report" if name == "report" else ""
        raise AttributeError(f"module 'ncclean' has no attribute {name!r}{hint}")
    # The one place where the library knows of the pipelines: users find the commands under the name
    # they import. Nothing inside ncclean uses it.
    from ncclean_pipelines.functions import function

    return function(name)


def __dir__() -> list[str]:
    return [*__all__, "webdataset"]
