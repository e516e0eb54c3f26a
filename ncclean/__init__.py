"""ncclean: find, remove and repair the damage of mismatched image-text pairs.

`ncclean.score(...)`, `ncclean.select(...)` and so on are the commands as functions, see
`ncclean_pipelines.api`. They are loaded when one is first used: importing `ncclean` stays instant.
"""

from typing import TYPE_CHECKING, Any

from ncclean._version import __version__

if TYPE_CHECKING:
    from ncclean_pipelines.api import (
        adapt,
        evaluate,
        evaluate_compare,
        evaluate_linear_probe,
        evaluate_noise,
        evaluate_retrieval,
        evaluate_similarity,
        evaluate_zeroshot,
        export,
        finetune,
        inject_noise,
        neighbours,
        run,
        score,
        select,
        synth,
        write_report,
    )

__all__ = [
    "__version__",
    "adapt",
    "evaluate",
    "evaluate_compare",
    "evaluate_linear_probe",
    "evaluate_noise",
    "evaluate_retrieval",
    "evaluate_similarity",
    "evaluate_zeroshot",
    "export",
    "finetune",
    "inject_noise",
    "neighbours",
    "run",
    "score",
    "select",
    "synth",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ncclean' has no attribute {name!r}")
    # The one place where the library knows of the pipelines: users find the commands under the name
    # they import. Nothing inside ncclean uses it.
    from ncclean_pipelines import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
