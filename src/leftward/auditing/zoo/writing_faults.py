"""Faults to plant into the writing of texts, each a mistake that somebody has shipped.

Every function breaks the package for as long as its block lasts, and mends it again. None of these can be reached by
a setting of the product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from leftward.decoding import sample
from leftward.decoding.beam import Search
from leftward.decoding.engine import _Board
from leftward.decoding.rows import Choice, Request
from leftward.decoding.sample import Single
from leftward.decoding.scorer import Scorer
from leftward.decoding.strategy import Room
from leftward.model import linear
from leftward.packed import Packed


@contextmanager
def _planted(owner: object, name: str, fault: object) -> Iterator[None]:
    sound = vars(owner)[name]
    setattr(owner, name, fault)
    try:
        yield
    finally:
        setattr(owner, name, sound)


@contextmanager
def forget_to_reorder() -> Iterator[None]:
    """Hypotheses change places, and what they have read does not."""

    def reorder(scorer: Scorer, parents: Tensor) -> None:
        del scorer, parents

    with _planted(Scorer, "reorder", reorder):
        yield


@contextmanager
def reorder_one_model() -> Iterator[None]:
    """Of several models only the first follows when hypotheses change places."""

    def reorder(scorer: Scorer, parents: Tensor) -> None:
        scorer._caches[0].reorder(parents)

    with _planted(Scorer, "reorder", reorder):
        yield


@contextmanager
def multiply_models() -> Iterator[None]:
    """The shares of several models are multiplied, and what is sure becomes surer."""
    sound = Scorer.advance

    def advance(scorer: Scorer, batch: Packed) -> Tensor:
        return sound(scorer, batch) * len(scorer._models)

    with _planted(Scorer, "advance", advance):
        yield


@contextmanager
def forget_the_prompt() -> Iterator[None]:
    """Of a prompt only the last token is read."""

    def prefill(scorer: Scorer, prompts: Packed) -> None:
        del scorer, prompts

    with _planted(Scorer, "prefill", prefill):
        yield


@contextmanager
def leave_sources_behind() -> Iterator[None]:
    """Rows move together when others are done, and their sources do not."""
    sound = Scorer.narrow

    def narrow(scorer: Scorer, slots: Tensor, sources: Tensor) -> None:
        sound(scorer, slots, torch.arange(len(sources)))

    with _planted(Scorer, "narrow", narrow):
        yield


@contextmanager
def reuse_slots_as_they_are() -> Iterator[None]:
    """A row that enters a group begins with what the row before it had."""
    sound_single, sound_search = Single.enter, Search.enter

    def enter_single(chooser: Single, groups: Sequence[int], requests: Sequence[Request]) -> None:
        total = chooser.total.clone()
        sound_single(chooser, groups, requests)
        chooser.total = total

    def enter_search(chooser: Search, groups: Sequence[int], requests: Sequence[Request]) -> None:
        pool = chooser.pool_score.clone()
        sound_search(chooser, groups, requests)
        chooser.pool_score = pool

    with _planted(Single, "enter", enter_single), _planted(Search, "enter", enter_search):
        yield


@contextmanager
def end_from_afar() -> Iterator[None]:
    """A hypothesis may end although many others are better: a beam of one ends before its time."""
    sound = Search._expand

    def expand(chooser: Search, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total, tokens, parents = sound(chooser, scores)
        end = -1 if chooser.room.end is None else chooser.room.end
        order = (tokens != end).long().argsort(dim=1, stable=True)
        return total.gather(1, order), tokens.gather(1, order), parents.gather(1, order)

    with _planted(Search, "_expand", expand):
        yield


@contextmanager
def end_for_nothing() -> Iterator[None]:
    """The log-probability of the end token does not count."""
    sound = Search._finish

    def finish(chooser: Search, ends: Tensor, total: Tensor, length: Tensor, slots: Tensor, *, is_open: bool) -> None:
        before = total if is_open else chooser.total.gather(1, slots)
        sound(chooser, ends, before, length, slots, is_open=is_open)

    with _planted(Search, "_finish", finish):
        yield


@contextmanager
def miscount_lengths() -> Iterator[None]:
    """The score of a hypothesis is that of one token less: the end token counts in the sum, and not in the length."""
    sound = Search._finish

    def finish(chooser: Search, ends: Tensor, total: Tensor, length: Tensor, slots: Tensor, *, is_open: bool) -> None:
        sound(chooser, ends, total, length, slots, is_open=is_open)
        shorter = (chooser.pool_length - 1).clamp(min=1).double()
        score = chooser.pool_total / shorter**chooser.settings.length_penalty
        chooser.pool_score = score.masked_fill(chooser.pool_score == -torch.inf, -torch.inf)

    with _planted(Search, "_finish", finish):
        yield


@contextmanager
def stop_when_asked_for_less() -> Iterator[None]:
    """A search is over when as many texts have ended as somebody wants to see."""
    sound = Search.choose

    def choose(chooser: Search, scores: Tensor, position: Tensor, last: Tensor) -> Choice:
        choice = sound(chooser, scores, position, last)
        chooser.over = chooser.over | (chooser.ended >= chooser.settings.n_best)
        return choice._replace(done=chooser.over)

    with _planted(Search, "choose", choose):
        yield


@contextmanager
def overrun_the_limit() -> Iterator[None]:
    """One token more than was asked for is written."""
    sound = _Board._is_last

    def is_last(board: _Board, group: int) -> bool:
        request = board.requests[group]
        if request is not None:
            board.requests[group] = replace(request, limit=request.limit + 1)
        answer = sound(board, group)
        board.requests[group] = request
        return answer

    with _planted(_Board, "_is_last", is_last):
        yield


@contextmanager
def write_on_after_the_end() -> Iterator[None]:
    """The end token is a word like any other."""
    sound = Room.__init__

    def begin(room: Room, groups: int, positions: int, device: torch.device, end: int | None, totals: bool) -> None:
        del end
        sound(room, groups, positions, device, None, totals)

    with _planted(Room, "__init__", begin):
        yield


@contextmanager
def draw_by_slot() -> Iterator[None]:
    """A draw depends on the place where a row happens to be written."""
    sound = sample.draw

    def draw(seed: int, row: Tensor, number: Tensor, position: Tensor) -> Tensor:
        return sound(seed, torch.arange(len(row), device=row.device), number, position)

    with _planted(sample, "draw", draw):
        yield


@contextmanager
def cut_the_tail() -> Iterator[None]:
    """A top-p of 1 leaves out what is very unlikely."""
    sound = sample.keep_top_p

    def keep_top_p(scores: Tensor, p: float) -> Tensor:
        return sound(scores, min(p, 0.9))

    with _planted(sample, "keep_top_p", keep_top_p):
        yield


@contextmanager
def keep_one_too_many() -> Iterator[None]:
    """The set of a share p keeps one word beyond the one that reaches p."""
    with _planted(sample, "keep_top_p", _keep_top_p(more=1)):
        yield


@contextmanager
def keep_one_too_few() -> Iterator[None]:
    """The set of a share p stops short of the word that reaches p."""
    with _planted(sample, "keep_top_p", _keep_top_p(more=-1)):
        yield


def _keep_top_p(more: int) -> Callable[[Tensor, float], Tensor]:
    """Keep so many words more than it takes to reach the share p."""

    def keep_top_p(scores: Tensor, p: float) -> Tensor:
        ordered, order = scores.sort(dim=-1, descending=True, stable=True)
        shares = ordered.double().softmax(dim=-1)
        enough = (shares.cumsum(dim=-1) - shares < p).sum(dim=-1, keepdim=True)
        place = torch.arange(scores.shape[-1], device=scores.device)
        beyond = place >= (enough + more).clamp(min=1)
        return scores.scatter(-1, order, ordered.masked_fill(beyond, -torch.inf))

    return keep_top_p


@contextmanager
def forget_exactness() -> Iterator[None]:
    """Linear maps take whatever path is fast for so many rows, although exact arithmetic is asked for."""
    with _planted(linear, "is_exact", lambda: False):
        yield
