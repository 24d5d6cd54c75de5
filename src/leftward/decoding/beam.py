"""Beam search: several beginnings of a text side by side, and the best by score at the end.

G groups of W hypotheses, V words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leftward.decoding.rows import Choice, Lineage, Output, Request
from leftward.decoding.strategy import Room
from leftward.settings import Beam


@dataclass(eq=False)
class Search:
    """A beam search at work.

    A hypothesis that ends moves to its group's pool, where it is kept by its score; W others go on. A group is done
    when as many have ended as there are hypotheses, or its limit is reached: then those still open join the pool.
    """

    settings: Beam
    room: Room
    lineage: Lineage
    total: Tensor  # (G, W) sum of log-probabilities of the open hypotheses; -inf where there is none
    ended: Tensor  # (G,) how many have ended
    over: Tensor  # (G,) which groups are done
    pool_score: Tensor  # (G, W), the best first; -inf where there is none
    pool_total: Tensor
    pool_length: Tensor  # tokens, the end token included
    pool_slot: Tensor  # whose words it has
    pool_open: Tensor  # whether it was cut by the limit

    @property
    def width(self) -> int:
        """Slots of one group."""
        return self.settings.size

    @classmethod
    def begin(cls, settings: Beam, room: Room) -> Search:
        """Room for so many groups, with nothing written."""
        shape = (room.groups, settings.size)

        def full(value: float, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=room.device)

        lineage = Lineage.allocate(room.positions, room.groups, settings.size, room.device)
        ended = torch.zeros(room.groups, dtype=torch.long, device=room.device)
        over = torch.zeros_like(ended, dtype=torch.bool)
        whole = torch.long
        return cls(
            settings, room, lineage, full(-torch.inf), ended, over, full(-torch.inf), full(-torch.inf),
            full(0, whole), full(0, whole), full(0, torch.bool),
        )  # fmt: skip

    def enter(self, groups: Sequence[int], requests: Sequence[Request]) -> None:
        """Begin new rows: one empty hypothesis each, from which the others branch off."""
        del requests
        where = torch.tensor(groups, device=self.room.device)
        self.total[where] = -torch.inf
        self.total[where, 0] = 0
        self.ended[where] = 0
        self.over[where] = False
        self.pool_score[where] = -torch.inf

    def choose(self, scores: Tensor, position: Tensor, last: Tensor) -> Choice:
        """Expand every hypothesis, let some end, and keep the best of the others."""
        total, tokens, parents = self._expand(scores)
        length = (position + 1)[:, None]
        ends = torch.zeros_like(tokens, dtype=torch.bool) if self.room.end is None else tokens == self.room.end
        # Only what is among the W best ends: a beam of one must end where greedy writing does.
        ends &= torch.arange(tokens.shape[1], device=tokens.device) < self.width
        writing = ~self.over[:, None]
        self._finish(ends & writing & torch.isfinite(total), total, length, parents, is_open=False)
        self.total, tokens, parents = self._prune(total, tokens, parents)
        self.lineage.record(position, tokens, parents)
        own = torch.arange(self.width, device=tokens.device).expand_as(tokens)
        # Those whose limit is reached stay as they are; they follow this very choice.
        cut = last[:, None] & writing & (self.ended < self.width)[:, None]
        self._finish(cut & torch.isfinite(self.total), self.total, length, own, is_open=True)
        self.over = self.over | last | (self.ended >= self.width) | ~torch.isfinite(self.total).any(dim=1)
        base = torch.arange(0, tokens.numel(), self.width, device=tokens.device)[:, None]
        return Choice(tokens, parents + base, self.over)

    def _expand(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The 2 W best continuations of each group (G, 2 W), best first: their totals, tokens and parents.

        One hypothesis can end in one way only, so of 2 W at least W go on.
        """
        groups, width = self.total.shape
        count = min(2 * width, scores.shape[1])
        top, tokens = scores.topk(count, dim=1)
        top = top.double() - scores.logsumexp(dim=1, keepdim=True).double()
        total = (self.total[:, :, None] + top.view(groups, width, count)).flatten(1)
        total, place = total.topk(2 * width, dim=1)
        return total, tokens.view(groups, -1).gather(1, place), place // count

    def _prune(self, total: Tensor, tokens: Tensor, parents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The W best continuations that do not end."""
        if self.room.end is not None:
            total = total.masked_fill(tokens == self.room.end, -torch.inf)
        total, place = total.topk(self.width, dim=1)
        return total, tokens.gather(1, place), parents.gather(1, place)

    def _finish(self, ends: Tensor, total: Tensor, length: Tensor, slots: Tensor, *, is_open: bool) -> None:
        """Let some hypotheses (G, any) join the pool, where the W best by score stay."""
        score = (total / length.double() ** self.settings.length_penalty).masked_fill(~ends, -torch.inf)
        if not is_open:
            self.ended += ends.sum(dim=1)
        every = torch.cat([self.pool_score, score], dim=1)
        self.pool_score, place = every.topk(self.width, dim=1)
        joining = (
            ("pool_total", total),
            ("pool_length", length.expand_as(total)),
            ("pool_slot", slots),
            ("pool_open", torch.full_like(ends, is_open)),
        )
        for name, values in joining:
            setattr(self, name, torch.cat([getattr(self, name), values], dim=1).gather(1, place))

    def outputs(self, group: int, length: int) -> list[Output]:
        """The best texts of a group."""
        del length
        outputs = []
        for place in range(self.settings.n_best):
            score = self.pool_score[group, place].item()
            if score == -float("inf"):
                break
            slot, count = int(self.pool_slot[group, place]), int(self.pool_length[group, place])
            if self.pool_open[group, place]:
                tokens = self.lineage.trace(group, count, slot)
            else:
                tokens = [*self.lineage.trace(group, count - 1, slot), self.room.end or 0]
            outputs.append(Output(tokens, score, self.pool_total[group, place].item()))
        return outputs

    def select(self, groups: Tensor) -> Search:
        """Only these groups."""
        names = ("total", "ended", "over", "pool_score", "pool_total", "pool_length", "pool_slot", "pool_open")
        parts = {name: getattr(self, name)[groups] for name in names}
        return replace(self, room=replace(self.room, groups=len(groups)), lineage=self.lineage.select(groups), **parts)
