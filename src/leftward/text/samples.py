"""What training draws from: pairs of lines, one long text, or many texts; and the rows of ids they become.

A row for a model that continues text is a stretch of it. A pair's rows are the source with its end, and the
target from its start to its end. Targets are whole: whoever uses one shifts it, and predicts all of it but
its first id.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from leftward.errors import TextError
from leftward.text.corpus import Documents, Lines
from leftward.text.order import scramble
from leftward.text.tokenizer import Tokenizer

Ids = NDArray[np.int32]
Numbers = NDArray[np.int64]
Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class Counts:
    """What became of the samples: how many were read, left out, cut, or hold characters never seen.

    >>> Counts(samples=2, long=1) + Counts(samples=3, empty=1)
    Counts(samples=5, rows=0, empty=1, long=1, split=0, unknown=0)
    """

    samples: int = 0  # pairs, documents, or windows of the one document
    rows: int = 0  # what they became
    empty: int = 0  # pairs left out because a side is blank; documents left out because they are
    long: int = 0  # pairs left out because a side has more tokens than the context
    split: int = 0  # documents cut into several rows because they have more tokens than the context
    unknown: int = 0  # characters in rows that the tokenizer never saw in training

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


@dataclass(frozen=True)
class Rows:
    """Rows of ids; `source` is None where there is one text only."""

    source: list[Ids] | None
    target: list[Ids]
    counts: Counts


class Samples(Protocol):
    """Numbered samples; each gives no row, one row or several."""

    size: int  # samples in an epoch
    volume: int  # bytes of text in an epoch, about
    context: int  # no row is longer: neither its source nor what is predicted

    def rows(self, numbers: Numbers, keys: Keys | None) -> Rows:
        """The rows of these samples; `keys`, one a sample, choose where to cut long texts (None: evenly)."""
        ...


class Pairs:
    """Lines of two files that translate each other; `chosen` are the lines to use, all if None."""

    def __init__(
        self,
        source: Lines,
        target: Lines,
        tokenizers: tuple[Tokenizer, Tokenizer],
        context: int,
        chosen: Numbers | None = None,
    ) -> None:
        self._source, self._target = source, target
        self._tokenizers = tokenizers
        self._chosen = np.arange(len(source)) if chosen is None else chosen
        self.size = len(self._chosen)
        self.volume = (source.size + target.size) * self.size // len(source)
        self.context = context

    def rows(self, numbers: Numbers, keys: Keys | None) -> Rows:  # noqa: ARG002  a pair is never cut
        """The pairs that have text on both sides and fit the context."""
        pairs = [(self._source[line], self._target[line]) for line in self._chosen[numbers]]
        filled = [pair for pair in pairs if pair[0].strip() and pair[1].strip()]
        reading, writing = self._tokenizers
        sources = reading.encode_batch([source for source, _ in filled])
        targets = writing.encode_batch([target for _, target in filled])
        fitting = [ids for ids in zip(sources, targets, strict=True) if max(map(len, ids)) < self.context]
        steer = writing.controls
        source = [np.array([*ids, reading.controls.end], np.int32) for ids, _ in fitting]
        target = [np.array([steer.start, *ids, steer.end], np.int32) for _, ids in fitting]
        counts = Counts(
            samples=len(pairs),
            rows=len(fitting),
            empty=len(pairs) - len(filled),
            long=len(filled) - len(fitting),
            unknown=sum(map(reading.count_unknown, source)) + sum(map(writing.count_unknown, target)),
        )
        return Rows(source, target, counts)


class Book:
    """One long text, tokenized once; a sample is a stretch of it.

    Stretches share one token: the last that one predicts is the first that the next one reads, so each token
    is predicted exactly once. The text starts with a start token, or with the token `given` that stood before
    it; it has an end token only if it `ends`: one file without known documents is an excerpt.
    """

    def __init__(
        self, text: str, tokenizer: Tokenizer, context: int, *, given: int | None = None, ends: bool = False
    ) -> None:
        first = tokenizer.controls.start if given is None else given
        last = [tokenizer.controls.end] if ends else []
        self.ids = np.concatenate([[first], tokenizer.encode_long(text), last]).astype(np.int32)
        self._tokenizer = tokenizer
        if len(self.ids) == 1:
            raise TextError("there is no text to learn from", hint="give a longer text")
        self.size = _count_stretches(self.ids, context)
        self.volume = len(text)
        self.context = context

    def rows(self, numbers: Numbers, keys: Keys | None) -> Rows:
        """These stretches, but for those that a cut near an end leaves empty."""
        keyed = [None] * len(numbers) if keys is None else keys
        cut = [_stretch(self.ids, self.context, number, key) for number, key in zip(numbers, keyed, strict=True)]
        target = [ids for ids in cut if len(ids) > 1]
        counts = Counts(
            samples=len(numbers),
            rows=len(target),
            split=int(np.count_nonzero(numbers == 0)) if self.size > 1 else 0,
            unknown=sum(self._tokenizer.count_unknown(ids[1:]) for ids in target),
        )
        return Rows(None, target, counts)


class Articles:
    """Many texts, tokenized when they are reached; each starts with a start token and ends with an end token.

    A sample is a document; one longer than the context is cut into stretches as a `Book` is.
    """

    def __init__(self, documents: Documents, tokenizer: Tokenizer, context: int, chosen: Numbers | None = None) -> None:
        self._documents = documents
        self._tokenizer = tokenizer
        self._chosen = np.arange(len(documents)) if chosen is None else chosen
        self.size = len(self._chosen)
        self.volume = documents.lines.size * self.size // len(documents)
        self.context = context

    def rows(self, numbers: Numbers, keys: Keys | None) -> Rows:
        """All stretches of these documents."""
        lines = self._chosen[numbers]
        keyed = [None] * len(lines) if keys is None else scramble(keys, lines)
        texts = [(self._documents[line], key) for line, key in zip(lines, keyed, strict=True)]
        filled = [(text, key) for text, key in texts if text.strip()]
        steer = self._tokenizer.controls
        target: list[Ids] = []
        split = 0
        encoded = self._tokenizer.encode_batch([text for text, _ in filled])
        for (_, key), ids in zip(filled, encoded, strict=True):
            whole = np.array([steer.start, *ids, steer.end], np.int32)
            count = _count_stretches(whole, self.context)
            cut = [_stretch(whole, self.context, number, key) for number in range(count)]
            target += [ids for ids in cut if len(ids) > 1]
            split += count > 1
        counts = Counts(
            samples=len(texts),
            rows=len(target),
            empty=len(texts) - len(filled),
            split=split,
            unknown=sum(self._tokenizer.count_unknown(ids[1:]) for ids in target),
        )
        return Rows(None, target, counts)


def split_end(text: str, share: float) -> tuple[str, str]:
    """Part one text into what to train on and its last `share`, to validate on.

    >>> split_end("abcdefghij", 0.1)
    ('abcdefghi', 'j')
    """
    place = int(len(text) * (1 - share))
    return text[:place], text[place:]


def _count_stretches(ids: Ids, context: int) -> int:
    """How many stretches hold a text wherever its first cut falls; some may turn out empty."""
    predicted = len(ids) - 1
    return 1 if predicted <= context else 2 + (predicted - 2) // context


def _stretch(ids: Ids, context: int, number: int, key: np.uint64 | None) -> Ids:
    """One stretch of a text whose first cut the key chooses; with fewer than two ids it predicts nothing."""
    last = len(ids) - 1
    first = context if key is None or last <= context else 1 + int(key % np.uint64(context))
    return ids[max(first + (number - 1) * context, 0) : min(first + number * context, last) + 1]
