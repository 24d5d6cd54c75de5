"""The loop of writing. Rows live in groups of slots; one that is done leaves, and the next one that waits enters.

The engine owns the loop, the slots, the cache and the stopping; what is written is the strategy's choice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from leftward.decoding.beam import Search
from leftward.decoding.rows import Choice, Output, Request
from leftward.decoding.sample import Single
from leftward.decoding.scorer import Scorer
from leftward.decoding.strategy import Chooser, Room
from leftward.errors import SettingsError
from leftward.packed import pack, step
from leftward.settings import Beam, Strategy

# A GPU is asked who is done only now and then: to ask is to wait for it.
STEPS_BETWEEN_LOOKS = {"cpu": 1, "cuda": 8, "mps": 8}


class Finished(NamedTuple):
    """A row that is written."""

    request: Request
    outputs: list[Output]


class Token(NamedTuple):
    """A token that has just been written, for those who want to see it at once."""

    request: Request
    token: int


@dataclass(frozen=True)
class Engine:
    """Writes rows with one strategy.

    >>> from leftward.model.transformer import Transformer
    >>> from leftward.settings import Greedy, Model, Stack
    >>> model = Transformer(Model(vocabulary=9, width=8, decoder=Stack(layers=1, heads=2, feed_forward=16))).eval()
    >>> engine = Engine(Scorer([model]), Greedy(), end=2, groups=4)
    >>> finished = list(engine.write([Request(row=row, prompt=[1], limit=5) for row in range(6)]))
    >>> sorted(each.request.row for each in finished)
    [0, 1, 2, 3, 4, 5]
    """

    scorer: Scorer
    strategy: Strategy
    end: int | None
    groups: int = 64
    totals: bool = True

    def write(self, requests: Iterable[Request]) -> Iterator[Finished]:
        """Write every row; they come in the order in which they are done."""
        for event in self.stream(requests):
            if isinstance(event, Finished):
                yield event

    @torch.inference_mode()
    def stream(self, requests: Iterable[Request]) -> Iterator[Finished | Token]:
        """The same, and between them every token as it is written; a beam has none to show before it is done."""
        waiting = deque(requests)
        if not waiting:
            return
        board = _Board.set(self, waiting)
        while waiting or board.active.any():
            board.admit(waiting)
            yield from board.advance()
            board.narrow(waiting)


@dataclass(eq=False)
class _Board:
    """Who sits where: G groups of W slots, and what the host knows of each."""

    scorer: Scorer
    chooser: Chooser
    capacity: int
    requests: list[Request | None]
    active: np.ndarray  # (G,)
    written: np.ndarray  # (G,) tokens written
    reach: np.ndarray  # (G,) the position of the next token to read
    ids: Tensor  # (S,) what is read next
    at: Tensor  # (S,) where it stands
    between_looks: int
    unseen: list[Choice]  # what the host has not looked at

    @classmethod
    def set(cls, engine: Engine, waiting: Sequence[Request]) -> _Board:
        # What is remembered belongs to this board: two may be at work with one engine.
        scorer, device = copy(engine.scorer), engine.scorer.device
        capacity = max(len(request.prompt) + request.limit for request in waiting)
        longest = max(len(request.prompt) for request in waiting)
        if longest > scorer.context:
            raise SettingsError(
                f"a prompt of {longest} tokens is longer than the model's context of {scorer.context}",
                where="the prompt",
                hint="shorten it",
            )
        capacity = min(capacity, scorer.context)
        sources = [len(request.source) for request in waiting if request.source is not None]
        width = engine.strategy.size if isinstance(engine.strategy, Beam) else 1
        groups = min(engine.groups, len(waiting))
        looks = STEPS_BETWEEN_LOOKS[device.type]
        # Between two looks a row that is done writes on; there must be room for that, too.
        room = Room(groups, capacity + looks, device, engine.end, engine.totals)
        chooser: Chooser = (
            Search.begin(engine.strategy, room)
            if isinstance(engine.strategy, Beam)
            else Single.begin(engine.strategy, room)
        )
        scorer.allocate(
            slots=groups * width,
            capacity=capacity,
            sources=groups if scorer.has_encoder else 0,
            source_capacity=max(sources, default=0),
            chunk=longest,
        )
        zeros = torch.zeros(groups * width, dtype=torch.long, device=device)
        whole = np.zeros(groups, dtype=np.int64)
        return cls(
            scorer, chooser, capacity, [None] * groups, np.zeros(groups, dtype=bool), whole, whole.copy(),
            zeros, zeros.clone(), looks, [],
        )  # fmt: skip

    def admit(self, waiting: deque[Request]) -> None:
        """Let rows that wait enter free groups, several at a time: reading one source alone costs as much as ten."""
        free = np.flatnonzero(~self.active)
        if not waiting or (self.active.any() and len(free) < max(1, len(self.active) // 8)):
            return
        groups = free[: len(waiting)].tolist()
        entering = [waiting.popleft() for _ in groups]
        width, device = self.chooser.width, self.ids.device
        if self.scorer.has_encoder:
            self.scorer.read(pack([request.source or [] for request in entering], names=groups).to(device))
        long = [(group, request.prompt[:-1]) for group, request in zip(groups, entering, strict=True)]
        long = [(group * width, prompt) for group, prompt in long if len(prompt)]
        if long:
            # The first slot of a group reads the prompt: a search begins with one hypothesis, whom all others follow.
            names, prompts = zip(*long, strict=True)
            reads = [name // width for name in names]
            self.scorer.prefill(pack(prompts, names=names, reads=reads).to(device))
        self.chooser.enter(groups, entering)
        for group, request in zip(groups, entering, strict=True):
            self.requests[group] = request
        self.active[groups] = True
        self.written[groups] = 0
        self.reach[groups] = [len(request.prompt) - 1 for request in entering]
        where = torch.tensor(groups, device=device)
        last = torch.tensor([request.prompt[-1] for request in entering], device=device)
        self.ids.view(-1, width)[where] = last[:, None]
        self.at.view(-1, width)[where] = torch.tensor(self.reach[groups], device=device)[:, None]

    def advance(self) -> Iterator[Finished | Token]:
        """One step of every slot."""
        device = self.ids.device
        furthest = int(self.reach[self.active].max())
        batch = step(self.ids, self.at, furthest=furthest, sources=len(self.active) if self.scorer.has_encoder else 0)
        scores = self.scorer.advance(batch)
        position = torch.from_numpy(self.written.copy()).to(device)
        last = np.array([self._is_last(group) for group in range(len(self.active))])
        choice = self.chooser.choose(scores, position, torch.from_numpy(last).to(device))
        if choice.parents is not None:
            self.scorer.reorder(choice.parents.view(-1))
        self.ids = choice.tokens.reshape(-1)
        self.at = (self.at + 1).clamp_(max=self.capacity - 1)
        self.written += self.active
        self.reach = np.minimum(self.reach + 1, self.capacity - 1)
        self.unseen.append(choice)
        if len(self.unseen) >= self.between_looks:
            yield from self._look()

    def _look(self) -> Iterator[Finished | Token]:
        """Fetch what was chosen since the last look, all at once, and let those leave who are done."""
        done = torch.stack([choice.done for choice in self.unseen]).cpu().numpy()
        tokens = None
        if self.chooser.width == 1:
            tokens = torch.stack([choice.tokens[:, 0] for choice in self.unseen]).cpu().numpy()
        self.unseen = []
        for group in np.flatnonzero(self.active).tolist():
            request = self.requests[group]
            if request is None:
                continue
            is_over = bool(done[-1, group])
            count = int(done[:, group].argmax()) + 1 if is_over else len(done)
            if tokens is not None:
                yield from (Token(request, int(token)) for token in tokens[:count, group])
            if is_over:
                length = int(self.written[group]) - (len(done) - count)
                yield Finished(request, self.chooser.outputs(group, length))
                self._leave(group)

    def _is_last(self, group: int) -> bool:
        """Whether the token being written is the last that this group may write."""
        request = self.requests[group]
        if request is None:
            return True
        # The last token is written and not read, so it needs no cell.
        is_full = len(request.prompt) + self.written[group] >= self.capacity
        return bool(self.written[group] + 1 >= request.limit or is_full)

    def _leave(self, group: int) -> None:
        self.requests[group] = None
        self.active[group] = False
        self.written[group] = self.reach[group] = 0
        self.at.view(-1, self.chooser.width)[group] = 0

    def narrow(self, waiting: deque[Request]) -> None:
        """Where nothing waits and half of the groups are empty, drop those: a processor computes every slot."""
        if waiting or self.unseen or self.ids.device.type != "cpu":
            return
        if not 0 < self.active.sum() <= len(self.active) // 2:
            return
        width = self.chooser.width
        kept = np.flatnonzero(self.active)
        groups = torch.from_numpy(kept)
        slots = (groups[:, None] * width + torch.arange(width)).view(-1)
        self.scorer.narrow(slots, groups)
        self.chooser = self.chooser.select(groups)
        self.requests = [self.requests[group] for group in kept]
        self.active, self.written, self.reach = self.active[kept], self.written[kept], self.reach[kept]
        self.ids, self.at = self.ids[slots], self.at[slots]
