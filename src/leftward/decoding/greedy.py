"""Always the likeliest next token.

S slots, one row in each.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leftward.decoding.sample import choose_greedily
from leftward.model.cache import Cache
from leftward.model.transformer import Transformer
from leftward.packed import Packed, step


def advance(model: Transformer, ids: Tensor, at: Tensor, cache: Cache, *, furthest: int, sources: int = 0) -> Tensor:
    """Read one token in every slot and choose the one that follows: (S,) to (S,)."""
    states = model(step(ids, at, furthest=furthest, sources=sources), cache=cache)
    return choose_greedily(model.scores(states))


@torch.inference_mode()
def write(model: Transformer, start: int, length: int, *, source: Packed | None = None, slots: int = 1) -> Tensor:
    """Write `length` tokens in every slot, from the start token on, whatever they are: (S, length).

    With a source there is one slot for each of its rows.

    >>> from leftward.settings import Model, Stack
    >>> model = Transformer(Model(vocabulary=9, width=8, decoder=Stack(layers=1, heads=2, feed_forward=16))).eval()
    >>> write(model, start=1, length=4).shape
    torch.Size([1, 4])
    """
    sources = 0
    if source is not None:
        slots = sources = int(source.row[-1]) + 1
    cache = model.allocate(
        slots=slots, capacity=length, sources=sources, source_capacity=source.furthest + 1 if source else 0
    )
    if source is not None:
        model.read(source, cache)
    device = model.output.weight.device
    ids, at = torch.full((slots,), start, device=device), torch.zeros(slots, dtype=torch.long, device=device)
    written = []
    for furthest in range(length):
        ids = advance(model, ids, at, cache, furthest=furthest, sources=sources)
        written.append(ids)
        at = at + 1
    return torch.stack(written, dim=1)
