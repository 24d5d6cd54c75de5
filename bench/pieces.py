"""The corpus as numbers: one joint vocabulary, rows of ids, and batches that every competitor gets alike.

A competitor never sees text. It gets one .npz file (`Corpus`): rows of ids without start or end, and batches,
lists of row numbers. So all do the same rows in the same order, and nobody's bucketing counts.

    python -m bench.pieces --data DIR

prints how full the rectangles are that competitors with padding make of these batches.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from bench.recipe import SEED

PADDING, START, END = 0, 1, 2
CONTROLS = 3  # the ids above; the tokenizer does not know them, so no text can produce one
VOCABULARY = 10_000  # with the controls
WINDOW = 8_192  # rows that are sorted together: a run on a stream cannot sort an epoch
BUDGET = 4_096  # cells of the padded rectangle of one side

DATA = Path("../shared/data/multi30k")
WORK = Path("build/bench")
SOURCE, TARGET = "en", "de"

Row = np.ndarray  # int32 ids of one sentence


@dataclass(frozen=True)
class Batch:
    """Some pairs of rows, still without start and end."""

    sources: list[Row]
    targets: list[Row]

    @property
    def target_tokens(self) -> int:
        """Real tokens to predict: the ids of every target and its end."""
        return sum(len(row) + 1 for row in self.targets)


@dataclass(frozen=True)
class Corpus:
    """Pairs of rows, and the batches to make of them."""

    sources: list[Row]
    targets: list[Row]
    batches: list[Row]

    def batch(self, number: int) -> Batch:
        """The batch of this number; after the last comes the first again."""
        rows = self.batches[number % len(self.batches)]
        return Batch([self.sources[row] for row in rows], [self.targets[row] for row in rows])

    def save(self, path: Path) -> None:
        """Write rows end to end, with the place where each begins."""
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(".half.npz")
        np.savez(
            half,
            sources=np.concatenate(self.sources),
            sources_at=_starts(self.sources),
            targets=np.concatenate(self.targets),
            targets_at=_starts(self.targets),
            batches=np.concatenate(self.batches),
            batches_at=_starts(self.batches),
        )
        half.rename(path)

    @classmethod
    def load(cls, path: Path) -> Corpus:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            return cls(
                sources=np.split(file["sources"], file["sources_at"][1:]),
                targets=np.split(file["targets"], file["targets_at"][1:]),
                batches=np.split(file["batches"], file["batches_at"][1:]),
            )


def training_file(data: Path, work: Path) -> Path:
    """The path of the training pairs in their batches; made on the first call."""
    texts = [_lines(data / f"train.{language}") for language in (SOURCE, TARGET)]
    path = work / f"train-{_fingerprint(texts)}.npz"
    if not path.exists():
        sources, targets = (encode(text, tokenizer_json(data, work)) for text in texts)
        Corpus(sources, targets, cut_batches(sources, targets)).save(path)
    return path


def decoding_file(data: Path, work: Path, rows: int) -> Path:
    """The path of the test sources in groups of `rows` rows of like length; made on the first call."""
    texts = [_lines(data / f"test_2016_flickr.{language}") for language in (SOURCE, TARGET)]
    trained_on = [_lines(data / f"train.{language}") for language in (SOURCE, TARGET)]
    path = work / f"test-{rows}-{_fingerprint(texts + trained_on)}.npz"
    if not path.exists():
        sources, targets = (encode(text, tokenizer_json(data, work)) for text in texts)
        Corpus(sources, targets, group_by_length(sources, rows)).save(path)
    return path


def tokenizer_json(data: Path, work: Path) -> str:
    """The joint byte-level BPE of the training text; the same text gives the same pieces."""
    texts = [_lines(data / f"train.{language}") for language in (SOURCE, TARGET)]
    path = work / f"pieces-{_fingerprint(texts)}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(train_pieces(texts[0] + texts[1], VOCABULARY - CONTROLS), encoding="utf-8")
    return path.read_text(encoding="utf-8")


def train_pieces(lines: Iterable[str], pieces: int) -> str:
    """Train byte-level BPE with this many pieces, and return the tokenizer as JSON."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=pieces,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer.to_str()


def encode(lines: Sequence[str], tokenizer: str) -> list[Row]:
    """The ids of every line; the first piece comes after the controls."""
    from tokenizers import Tokenizer

    encoded = Tokenizer.from_str(tokenizer).encode_batch(list(lines))
    return [np.array(line.ids, np.int32) + CONTROLS for line in encoded]


def cut_batches(
    sources: Sequence[Row], targets: Sequence[Row], *, window: int = WINDOW, budget: int = BUDGET
) -> list[Row]:
    """Row numbers of every batch: windows of shuffled rows, sorted by length, cut to the budget, shuffled.

    A batch of n rows fits when n times its longest row (source or target, with its end) is within the budget.
    A row that is longer than the budget is a batch of its own.
    """
    random = np.random.default_rng(SEED)
    order = random.permutation(len(sources))
    batches: list[list[int]] = []
    for start in range(0, len(order), window):
        batch: list[int] = []
        longest = 0
        for row in sorted(
            order[start : start + window],
            key=lambda row: (max(len(sources[row]), len(targets[row])), len(targets[row])),
        ):
            length = max(len(sources[row]), len(targets[row])) + 1
            if batch and (len(batch) + 1) * max(longest, length) > budget:
                batches.append(batch)
                batch, longest = [], 0
            batch.append(row)
            longest = max(longest, length)
        batches.append(batch)
    return [np.array(batches[place], np.int32) for place in random.permutation(len(batches))]


def group_by_length(sources: Sequence[Row], rows: int) -> list[Row]:
    """Row numbers in groups of `rows` rows of like length, shuffled; rows that fill no group are dropped."""
    order = sorted(range(len(sources)), key=lambda row: len(sources[row]))
    whole = len(order) // rows
    groups = np.array(order[: whole * rows], np.int32).reshape(whole, rows)
    return list(np.random.default_rng(SEED).permutation(groups))


def fill(rows: Sequence[Row], batches: Sequence[Row]) -> float:
    """The share of real tokens (ends included) in the padded rectangles of these batches."""
    lengths = [[len(rows[row]) + 1 for row in batch] for batch in batches]
    return sum(map(sum, lengths)) / sum(len(batch) * max(batch) for batch in lengths)


def _starts(rows: Sequence[Row]) -> np.ndarray:
    return np.cumsum([0, *map(len, rows[:-1])])


def _lines(path: Path) -> list[str]:
    # Only \n ends a line: splitlines would also cut at U+2028 and shift every later pair.
    return path.read_bytes().decode().removesuffix("\n").split("\n")


def _fingerprint(texts: Sequence[Sequence[str]]) -> str:
    # With this file's own text in the name, a changed way of cutting never meets old rows.
    made_of = (texts, SEED, metadata.version("tokenizers"), Path(__file__).read_text(encoding="utf-8"))
    return hashlib.sha256(repr(made_of).encode()).hexdigest()[:12]


def main() -> None:
    """Make the training file and say what is in it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--work", type=Path, default=WORK)
    arguments = parser.parse_args()
    path = training_file(arguments.data, arguments.work)
    corpus = Corpus.load(path)
    tokens = sum(len(row) + 1 for row in corpus.targets)
    print(f"{path}: {len(corpus.sources):,} pairs, {len(corpus.batches)} batches, {tokens:,} target tokens")
    for side, rows in (("source", corpus.sources), ("target", corpus.targets)):
        print(f"padded rectangles of the {side} are {fill(rows, corpus.batches):.1%} real tokens")


if __name__ == "__main__":
    main()
