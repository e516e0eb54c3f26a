"""Options of a model as judge. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ncclean.base.options import Option, Options

KEY_VARIABLE = "OPENAI_API_KEY"


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(Options):
    """The server to ask, what it is asked, and how much it may cost."""

    judge: Annotated[
        str | None,
        Option(
            "Server whose model judges, such as `http://localhost:8000/v1`: any with OpenAI's "
            f"chat completions and images. {KEY_VARIABLE} is its key.",
            metavar="URL",
            extra="judge",
        ),
    ] = None
    judge_model: Annotated[
        str | None, Option("The model's name on the server.", metavar="NAME")
    ] = None
    judge_prompt: Annotated[
        str,
        Option(
            "`match`, `words` (also names the wrong words), or a YAML file.", metavar="NAME|FILE"
        ),
    ] = "match"
    judge_image_size: Annotated[
        int, Option("Longest side in pixels of the images sent.", low=32, high=4096)
    ] = 768
    judge_requests: Annotated[int, Option("Requests at a time.", low=1, high=256, is_idle=True)] = 8
    judge_timeout: Annotated[
        float, Option("Seconds to wait for an answer.", above=0, is_idle=True)
    ] = 120.0
    judge_tokens: Annotated[
        int | None, Option("Maximum tokens to use, over all runs.", low=1, is_idle=True)
    ] = None
    dry_run: Annotated[
        bool, Option("With --judge: only count the requests and estimate the tokens.")
    ] = False
