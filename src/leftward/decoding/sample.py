"""One text a group: the likeliest token at each step, or one drawn by its probability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leftward.decoding.draws import draw
from leftward.decoding.logits import keep_top_k, keep_top_p, temper
from leftward.decoding.rows import Choice, Lineage, Output, Request
from leftward.decoding.strategy import Room
from leftward.settings import Greedy, Sample

STRETCH = 128


def choose_greedily(scores: Tensor) -> Tensor:
    """The likeliest token of each row.

    >>> choose_greedily(torch.tensor([[0.1, 0.7, 0.2]])).tolist()
    [1]
    """
    # torch looks for the place of a maximum one number at a time, and for its value eight and more at once: so find
    # the best stretch of words by its value, and only there look for the place.
    stretches = scores.shape[-1] // STRETCH
    if stretches < 2:
        return scores.argmax(dim=-1)
    head, tail = scores[:, : stretches * STRETCH].unflatten(1, (stretches, STRETCH)), scores[:, stretches * STRETCH :]
    best = head.amax(dim=2)
    which = best.argmax(dim=1)
    row = torch.arange(len(scores), device=scores.device)
    place = which * STRETCH + head[row, which].argmax(dim=1)
    if not tail.shape[1]:
        return place
    last, place_of_last = tail.max(dim=1)
    return torch.where(last > best[row, which], stretches * STRETCH + place_of_last, place)


def choose_by_lot(scores: Tensor, lots: Tensor, settings: Sample) -> Tensor:
    """The token on whose share of the line from 0 to 1 the lot (S,) falls, the likeliest word coming first.

    >>> scores = torch.tensor([[0.6, 0.4]]).log()
    >>> [choose_by_lot(scores, torch.tensor([lot]), Sample()).item() for lot in (0.5, 0.7)]
    [0, 1]
    """
    kept = keep_top_p(keep_top_k(temper(scores, settings.temperature), settings.top_k), settings.top_p)
    ordered, order = kept.double().sort(dim=-1, descending=True, stable=True)
    reached = ordered.softmax(dim=-1).cumsum(dim=-1)
    # Rounding may leave the last sum below 1, and must not let a lot fall behind the last word that is kept.
    most = torch.isfinite(ordered).sum(dim=-1, keepdim=True) - 1
    place = torch.minimum((reached <= lots[:, None]).sum(dim=-1, keepdim=True), most)
    return order.gather(-1, place)[:, 0]


@dataclass(eq=False)
class Single:
    """Greedy writing, or sampling: they differ in one line."""

    settings: Greedy | Sample
    room: Room
    lineage: Lineage
    total: Tensor  # (G,) sum of log-probabilities
    row: Tensor  # (G,)
    sample: Tensor  # (G,)
    over: Tensor  # (G,) whose text has ended

    @property
    def width(self) -> int:
        """Slots of one group."""
        return 1

    @classmethod
    def begin(cls, settings: Greedy | Sample, room: Room) -> Single:
        """Room for so many groups, with nothing written."""
        zeros = torch.zeros(room.groups, dtype=torch.long, device=room.device)
        total = torch.zeros(room.groups, dtype=torch.float64, device=room.device)
        lineage = Lineage.allocate(room.positions, room.groups, 1, room.device)
        return cls(settings, room, lineage, total, zeros, zeros.clone(), torch.zeros_like(zeros, dtype=torch.bool))

    def enter(self, groups: Sequence[int], requests: Sequence[Request]) -> None:
        """Begin new rows in these groups."""
        where = torch.tensor(groups, device=self.room.device)
        self.total[where] = 0
        self.over[where] = False
        self.row[where] = torch.tensor([request.row for request in requests], device=self.room.device)
        self.sample[where] = torch.tensor([request.sample for request in requests], device=self.room.device)

    def choose(self, scores: Tensor, position: Tensor, last: Tensor) -> Choice:
        """Choose the next token of every group."""
        if isinstance(self.settings, Greedy):
            tokens = choose_greedily(scores)
        else:
            lots = draw(self.settings.seed, self.row, self.sample, position)
            tokens = choose_by_lot(scores, lots, self.settings)
        if self.room.totals:
            gained = scores.gather(1, tokens[:, None])[:, 0] - scores.logsumexp(dim=1)
            self.total += gained.masked_fill(self.over, 0)
        self.lineage.record(position, tokens[:, None], None)
        ends = last if self.room.end is None else last | (tokens == self.room.end)
        self.over = self.over | ends
        return Choice(tokens[:, None], None, self.over)

    def outputs(self, group: int, length: int) -> list[Output]:
        """The one text of a group."""
        total = self.total[group].item() if self.room.totals else math.nan
        return [Output(self.lineage.trace(group, length, 0), total, total)]

    def select(self, groups: Tensor) -> Single:
        """Only these groups."""
        return replace(
            self,
            room=replace(self.room, groups=len(groups)),
            lineage=self.lineage.select(groups),
            total=self.total[groups],
            row=self.row[groups],
            sample=self.sample[groups],
            over=self.over[groups],
        )
