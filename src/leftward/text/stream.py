"""The stream of training batches, a pure function of the seed.

Samples follow each other in an order that holds every line of a corpus once an epoch. The stream is cut into
windows of a fixed number of samples. A window is tokenized when it is reached, its rows are cut into batches
of like length, and its batches are shuffled. So a place in the stream is two numbers, and going on from there
is going on exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from leftward.errors import SettingsError, TextError
from leftward.text.order import permute, scramble, take_turns
from leftward.text.packing import cut
from leftward.text.samples import Counts, Ids, Keys, Numbers, Pairs, Rows, Samples

_WINDOW = 8192
_WINDOW_VOLUME = 1 << 23  # bytes of text in a window: what long documents may take before the first step
_LINES, _CUTS, _TIES, _BATCHES = range(4)  # what a random choice is for, so that no two are alike


@dataclass(frozen=True)
class Place:
    """Where in the stream a batch stands; no number of processes changes it."""

    window: int = 0
    batch: int = 0


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of one optimizer step; `counts` tells what was met on the way from the batch before."""

    source: list[Ids] | None
    target: list[Ids]
    place: Place
    after: Place
    counts: Counts

    @property
    def predicted(self) -> int:
        """How many target tokens the rows predict: all but the first of each."""
        return sum(len(ids) - 1 for ids in self.target)

    def share(self, rank: int, world: int) -> Batch:
        """The part of the rows that one of `world` processes takes, of all lengths alike; it may be none."""
        source = None if self.source is None else self.source[rank::world]
        return replace(self, source=source, target=self.target[rank::world])


class Stream:
    """Training batches of one corpus, or of several mixed by weight: the share of samples each gives.

    >>> from leftward.text.samples import Book
    >>> from leftward.text.vocabulary import train_characters
    >>> book = Book("to be or not", train_characters(["to be or not"]), context=4)
    >>> stream = Stream([book], budget=8, seed=1)
    >>> batches = stream.batches()
    >>> first, second = next(batches), next(batches)
    >>> again = next(stream.batches(first.after))
    >>> [ids.tolist() for ids in second.target] == [ids.tolist() for ids in again.target]
    True
    """

    def __init__(
        self,
        corpora: Sequence[Samples],
        *,
        budget: int,
        seed: int,
        weights: Sequence[float] | None = None,
        window: int = _WINDOW,
    ) -> None:
        sizes = [corpus.size for corpus in corpora]
        for corpus in corpora:
            _require_room(corpus, budget)
        if len({isinstance(corpus, Pairs) for corpus in corpora}) > 1:
            raise SettingsError("pairs and single texts cannot be mixed", hint="train on one kind")
        if weights is not None and (len(weights) != len(sizes) or min(weights) <= 0):
            raise SettingsError(f"{len(sizes)} corpora need as many weights above 0", hint=f"{list(weights)} are not")
        self._corpora, self._budget, self._seed = corpora, budget, seed
        self._weights = sizes if weights is None else weights
        # So many samples hold each corpus whole, wherever one starts.
        shares = [size / weight for size, weight in zip(sizes, self._weights, strict=True)]
        self._patience = 2 * max(shares) * sum(self._weights)
        # No more than an epoch: sorting by length would bring copies of a line together.
        fitting = _WINDOW_VOLUME * sum(sizes) // max(1, sum(corpus.volume for corpus in corpora))
        self.window_size = max(1, min(window, sum(sizes), fitting))

    def locate(self, samples: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """The corpus, the epoch of it and the number in it of each sample of the stream."""
        corpus, before = take_turns(samples, self._weights)
        sizes = np.array([corpus.size for corpus in self._corpora])
        epoch = before // sizes[corpus]
        number = np.empty_like(before)
        for which, size in enumerate(sizes):
            mine = corpus == which
            number[mine] = permute(before[mine] % size, int(size), scramble(self._seed, _LINES, which, epoch[mine]))
        return corpus, epoch, number

    def batches(self, place: Place = Place()) -> Iterator[Batch]:
        """The batches from a place on, without end."""
        window, skipped, counts, barren = place.window, place.batch, Counts(), 0
        while barren * self.window_size <= self._patience:
            rows = self._rows(window)
            if not skipped:  # or else the first batch of the window, which is behind us, told of it
                counts += rows.counts
            for batch in _pack(rows, self._budget, window, scramble(self._seed, _BATCHES, window))[skipped:]:
                yield replace(batch, counts=counts)
                counts = Counts()
            barren = 0 if rows.target else barren + 1
            window, skipped = window + 1, 0
        reasons = f"{counts.empty:,} are blank and {counts.long:,} are longer than the context"
        raise TextError(
            f"no row is left to train on: of {counts.samples:,} samples {reasons}",
            hint="look at the files, or allow longer rows with a larger context",
        )

    def _rows(self, window: int) -> Rows:
        corpus, epoch, number = self.locate(np.arange(window * self.window_size, (window + 1) * self.window_size))
        parts = []
        for which, samples in enumerate(self._corpora):
            mine = corpus == which
            parts.append(samples.rows(number[mine], scramble(self._seed, _CUTS, which, epoch[mine])))
        target = [ids for part in parts for ids in part.target]
        source = [ids for part in parts for ids in part.source or []]
        # Rows of one length stay in the order they have here, and must not stay in that of the corpora.
        order = permute(np.arange(len(target)), len(target), scramble(self._seed, _TIES, window))
        return Rows(
            [source[row] for row in order] if source else None,
            [target[row] for row in order],
            sum((part.counts for part in parts), Counts()),
        )


def once(samples: Samples, budget: int) -> Iterator[Batch]:
    """All samples one time, cut and ordered in a way that never changes: to validate on.

    >>> from leftward.text.samples import Book
    >>> from leftward.text.vocabulary import train_characters
    >>> book = Book("to be or not", train_characters(["to be or not"]), context=4)
    >>> sum(batch.predicted for batch in once(book, budget=8))
    12
    """
    _require_room(samples, budget)
    for window, first in enumerate(range(0, samples.size, _WINDOW)):
        rows = samples.rows(np.arange(first, min(first + _WINDOW, samples.size)), None)
        yield from _pack(rows, budget, window, None)


def _pack(rows: Rows, budget: int, window: int, key: Keys | None) -> list[Batch]:
    """The rows of a window as batches, shuffled by the key."""
    source = None if rows.source is None else [len(ids) for ids in rows.source]
    groups = cut(source, [len(ids) - 1 for ids in rows.target], budget)
    if key is not None:
        groups = [groups[number] for number in permute(np.arange(len(groups)), len(groups), key)]
    return [
        Batch(
            source=None if rows.source is None else [rows.source[row] for row in group],
            target=[rows.target[row] for row in group],
            place=Place(window, number),
            after=Place(window, number + 1) if number + 1 < len(groups) else Place(window + 1),
            counts=Counts() if number else rows.counts,
        )
        for number, group in enumerate(groups)
    ]


def _require_room(samples: Samples, budget: int) -> None:
    if samples.context > budget:
        raise SettingsError(
            f"a context of {samples.context} does not fit in batches of {budget} tokens",
            where="batch-tokens",
            hint="ask for larger batches or a smaller context",
        )
