"""Time of the masked transport solver at NCU's batch size, beside a matrix product of that size.

Cosines are distributed as a CLIP model's are, and a tenth of the pairs is forgotten, so the number
of iterations is what training sees. The matrix product is what one layer costs at least.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from measure import Setting, take_turns
from results import Row

from ncclean.training.objectives.ncu_targets import TransportProblem, transport_problem
from ncclean.training.transport import masked_sinkhorn

_DIM = 512
_FORGOTTEN = 0.1


def run(setting: Setting) -> list[Row]:
    pairs = setting.choose(full=2048, quick=512)
    problem = simulated_problem(pairs)
    square = torch.randn(pairs, pairs)
    timings = take_turns(
        {
            "solve": lambda: masked_sinkhorn(*problem),
            "100 iterations": lambda: masked_sinkhorn(*problem, tolerance=0.0),
            "matrix product": lambda: square @ square,
        },
        repeats=setting.choose(full=5, quick=3),
    )
    product = timings["matrix product"]
    plan = timings["solve"].results[0]
    off = float((plan.sum(dim=1) - problem.row_marginal).abs().sum())
    notes = {
        "solve": f"row sums off by {off:.1e} in all",
        "100 iterations": "never stopping early",
        "matrix product": f"{pairs} x {pairs} x {pairs}, float32",
    }
    return [
        Row(
            name=f"{name}, N = {pairs}",
            value=timing.best,
            unit="s",
            ratio=timing.best / product.best,
            note=f"{notes[name]}, {timing.spread}",
        )
        for name, timing in timings.items()
    ]


def simulated_problem(pairs: int, device: str = "cpu") -> TransportProblem:
    """Embeddings whose matched cosines are about .3, mismatched .1, and negative texts -.4."""
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(_DIM, generator=generator)

    def embedded(*parts: torch.Tensor) -> torch.Tensor:
        own = torch.randn(pairs, _DIM, generator=generator)
        return F.normalize(sum(parts, own), dim=1)

    topic = torch.randn(pairs, _DIM, generator=generator)
    forget = torch.arange(pairs) < round(_FORGOTTEN * pairs)
    image = embedded(0.5 * topic, 0.35 * shared)
    text = embedded(torch.where(forget.unsqueeze(1), topic.flip(0), topic), 0.35 * shared)
    negative = embedded(-topic)
    given = (each.to(device) for each in (image, text, negative, forget))
    return transport_problem(*given)
