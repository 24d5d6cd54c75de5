"""The verbs as typed functions: what Python code calls, and the command line too."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from leftward import checkpoint
from leftward.auditing import laws
from leftward.auditing.specimens import draw_sample
from leftward.auditing.verdict import Finding
from leftward.decoding.engine import Engine, Finished, Token
from leftward.decoding.rows import Request
from leftward.decoding.scorer import Scorer
from leftward.errors import SettingsError, TextError
from leftward.machine import count_cores, is_medium_as_exact_as_float32, settle_device
from leftward.metrics import compare
from leftward.model.exact import exact as exact_arithmetic
from leftward.model.precision import computing_in
from leftward.model.transformer import Transformer
from leftward.packed import pack, unpack
from leftward.settings import Beam, DocumentsBy, Greedy, PiecesKind, Precision, Sample, Strategy
from leftward.text.corpus import Documents, Lines, require_pairs
from leftward.text.samples import Articles, Book, Pairs, Samples
from leftward.text.stream import once
from leftward.text.tokenizer import TextWriter
from leftward.training.loop import lesson_of
from leftward.training.objective import loss_of
from leftward.training.preparation import prepare
from leftward.training.session import Report, Trained
from leftward.training.session import train as train_prepared
from leftward.wishes import SizeName, TrainWishes

SLOTS = 64
# From so many rows on, "medium" matrix products pay in a decoding step (bench/decode_step).
MEDIUM_FROM_SLOTS = 16
WINDOW = 10_000  # lines sorted by length together


class Text(NamedTuple):
    """One text that was written; `score` is what the strategy ranks by, `total` its log-probability."""

    text: str
    score: float
    total: float


@dataclass(frozen=True)
class Written:
    """What was written for one line or prompt, the best first."""

    row: int
    given: str
    outputs: list[Text]
    is_cut: bool = False  # whether what was given was longer than the model can read


@dataclass(frozen=True)
class Scored:
    """How likely a model finds a text: natural logarithms, for each piece and in all."""

    row: int
    total: float
    tokens: list[str]
    log_probabilities: list[float]


@dataclass(frozen=True)
class Evaluation:
    """How good a model is on text it was not trained on; the first three are None for a single text."""

    bleu: float | None
    chrf: float | None
    exact: float | None
    loss: float
    perplexity: float
    rows: int
    signature: str | None


class Decoder:
    """A trained model with all it needs: text in, text out."""

    def __init__(self, loaded: checkpoint.Loaded, device: str) -> None:
        self.folder_note = loaded.note
        self.step = loaded.step
        self.kit = loaded.kit
        self.model: Transformer = loaded.model.to(device)
        self.device = device

    @property
    def reads_source(self) -> bool:
        """Whether it translates; or else it continues text."""
        return self.model.settings.has_encoder

    @property
    def tags(self) -> tuple[str, ...]:
        """The target languages it knows; the first is the default."""
        return self.kit.run.pieces.target.tags

    def translate(
        self,
        texts: Sequence[str],
        *,
        strategy: Strategy = Greedy(),
        to: str | None = None,
        max_new: int | None = None,
        exact: bool = False,
    ) -> list[str]:
        """The best translation of each text, in their order.

        An empty text stays empty.
        """
        full = self.translate_in_full(texts, strategy=strategy, to=to, max_new=max_new, exact=exact, totals=False)
        return [written.outputs[0].text if written.outputs else "" for written in full]

    def translate_in_full(
        self,
        texts: Sequence[str],
        *,
        strategy: Strategy = Greedy(),
        to: str | None = None,
        max_new: int | None = None,
        exact: bool = False,
        totals: bool = True,
        first_row: int = 0,
    ) -> list[Written]:
        """Every translation of each text, with scores; draws count rows from `first_row`."""
        if not self.reads_source:
            raise SettingsError("this model continues text and translates none", where="translate", hint="use generate")
        prompt = self._prompt(to)
        context = self.model.settings.context
        results: list[Written] = [Written(first_row + number, text, []) for number, text in enumerate(texts)]
        requests = []
        filled = [number for number, text in enumerate(texts) if text.strip()]
        for number, ids in zip(filled, self.kit.source.encode_batch([texts[n] for n in filled]), strict=True):
            if len(ids) >= context:
                ids, results[number] = ids[: context - 1], replace(results[number], is_cut=True)
            limit = min(2 * len(ids) + 10 if max_new is None else max_new, context - len(prompt) + 1)
            source = [*ids, self.kit.source.controls.end]
            requests += self._requests(strategy, first_row + number, prompt, limit, source)
        # Rows of like length side by side, the longest first, so that rectangles are full and memory shows at once.
        requests.sort(key=lambda request: -len(request.source or ()))
        for request, outputs in self._write(requests, strategy, exact=exact, totals=totals):
            results[request - first_row].outputs.extend(outputs)
        return results

    def generate(
        self, prompt: str = "", *, strategy: Strategy = Sample(), max_new: int = 200, exact: bool = False
    ) -> str:
        """A continuation of the prompt, without the prompt."""
        outputs = self.generate_in_full([prompt], strategy=strategy, max_new=max_new, exact=exact)[0].outputs
        return outputs[0].text

    def generate_in_full(
        self,
        prompts: Sequence[str],
        *,
        strategy: Strategy = Sample(),
        max_new: int = 200,
        exact: bool = False,
    ) -> list[Written]:
        """Every continuation of each prompt, with scores."""
        requests = []
        for row, prompt in enumerate(prompts):
            ids = self._read_prompt(prompt)
            limit = min(max_new, self.model.settings.context - len(ids) + 1)
            requests += self._requests(strategy, row, ids, limit, None)
        results = [Written(row, prompt, []) for row, prompt in enumerate(prompts)]
        for row, outputs in self._write(requests, strategy, exact=exact, totals=True):
            results[row].outputs.extend(outputs)
        return results

    def stream(
        self, prompt: str = "", *, strategy: Strategy = Sample(), max_new: int = 200, exact: bool = False
    ) -> Iterator[str]:
        """A continuation as it is written, whole characters only."""
        if isinstance(strategy, Beam):
            yield self.generate(prompt, strategy=strategy, max_new=max_new, exact=exact)
            return
        ids = self._read_prompt(prompt)
        limit = min(max_new, self.model.settings.context - len(ids) + 1)
        writer = TextWriter(self.kit.target)
        for event in self._events([Request(0, ids, limit)], strategy, exact=exact, totals=False):
            if isinstance(event, Token) and (text := writer.add(event.token)):
                yield text
        if rest := writer.finish():
            yield rest

    def score(self, targets: Sequence[str], sources: Sequence[str] | None = None) -> list[Scored]:
        """How likely the model finds each text, as a translation of its source where it translates."""
        if self.reads_source != (sources is not None):
            what = "this model needs the sources" if self.reads_source else "this model reads no sources"
            raise SettingsError(what, where="score", hint="give texts of the kind the model was trained on")
        context = self.model.settings.context
        rows, reads, owners = [], [], []
        for number, ids in enumerate(self.kit.target.encode_batch(list(targets))):
            whole = [*self._prompt(None), *ids, self.kit.target.controls.end]
            if len(whole) - 1 > context and self.reads_source:
                raise TextError(
                    f"a text of {len(whole) - 1} tokens is longer than the model's context of {context}",
                    where=f"line {number + 1}",
                    hint="leave it out",
                )
            for begin in range(0, len(whole) - 1, context):
                rows.append(whole[begin : begin + context + 1])
                owners.append(number)
        if sources is not None:
            encoded = self.kit.source.encode_batch(list(sources))
            reads = [[*ids[: context - 1], self.kit.source.controls.end] for ids in encoded]
        values: list[list[float]] = [[] for _ in targets]
        pieces: list[list[str]] = [[] for _ in targets]
        skip = len(self._prompt(None)) - 1
        logits = self.logits([row[:-1] for row in rows], reads or None)
        for owner, row, scores in zip(owners, rows, logits, strict=True):
            said = scores.double().log_softmax(dim=-1).gather(1, torch.tensor(row[1:])[:, None])[:, 0].tolist()
            begin = skip if not values[owner] else 0
            values[owner] += said[begin:]
            pieces[owner] += [self.kit.target.piece(token) for token in row[1 + begin :]]
        return [
            Scored(row, math.fsum(numbers), names, numbers)
            for row, (numbers, names) in enumerate(zip(values, pieces, strict=True))
        ]

    @torch.inference_mode()
    def logits(self, rows: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None = None) -> list[Tensor]:
        """The scores (len(row), vocabulary) behind every token of each row, all in one pass.

        Rows and sources are token ids as they enter the decoder and the encoder; nothing is added to them.
        """
        if not rows:
            return []
        target = pack(rows).to(self.device)
        source = None if sources is None else pack(sources).to(self.device)
        return [part.float().cpu() for part in unpack(self.model.scores(self.model(target, source)), target)]

    def _prompt(self, to: str | None) -> list[int]:
        controls = self.kit.target.controls
        if to is None:
            return [controls.start, *[number for _, number in controls.tags[:1]]]
        numbers = dict(controls.tags)
        if to not in numbers:
            known = f"it knows {', '.join(numbers)}" if numbers else "it was trained for one language only"
            raise SettingsError(f"the model knows no language {to!r}", where="--to", hint=known)
        return [controls.start, numbers[to]]

    def _read_prompt(self, prompt: str) -> list[int]:
        if self.reads_source:
            raise SettingsError("this model translates and continues no text", where="generate", hint="use translate")
        ids = [self.kit.target.controls.start, *self.kit.target.encode(prompt)]
        context = self.model.settings.context
        if len(ids) > context:
            raise TextError(
                f"the prompt has {len(ids)} tokens, and the model's context holds {context}",
                where="the prompt",
                hint="shorten it",
            )
        return ids

    def _requests(
        self, strategy: Strategy, row: int, prompt: Sequence[int], limit: int, source: Sequence[int] | None
    ) -> list[Request]:
        samples = strategy.n_best if isinstance(strategy, Sample) else 1
        return [Request(row, prompt, limit, source, sample) for sample in range(samples)]

    def _write(
        self, requests: Sequence[Request], strategy: Strategy, *, exact: bool, totals: bool
    ) -> Iterator[tuple[int, list[Text]]]:
        finished = [
            event
            for event in self._events(requests, strategy, exact=exact, totals=totals)
            if isinstance(event, Finished)
        ]
        for event in sorted(finished, key=lambda event: (event.request.row, event.request.sample)):
            texts = [Text(self.kit.target.decode(out.tokens), out.score, out.total) for out in event.outputs]
            yield event.request.row, texts

    def _events(
        self, requests: Sequence[Request], strategy: Strategy, *, exact: bool, totals: bool
    ) -> Iterator[Finished | Token]:
        width = strategy.size if isinstance(strategy, Beam) else 1
        groups = max(1, min(SLOTS, len(requests)))
        engine = Engine(Scorer([self.model]), strategy, self.kit.target.controls.end, groups=groups, totals=totals)
        is_wide = groups * width >= MEDIUM_FROM_SLOTS and self.device == "cpu" and not exact
        with contextlib.ExitStack() as around:
            if exact:
                around.enter_context(exact_arithmetic())
            elif is_wide and is_medium_as_exact_as_float32():
                around.enter_context(computing_in("medium"))
            yield from engine.stream(requests)


def load(folder: str | Path, *, device: str | None = None, threads: int | None = None) -> Decoder:
    """Read a trained model from its folder.

    >>> load("no-such-folder")
    Traceback (most recent call last):
    leftward.errors.CheckpointError: there is no such folder
    ...
    """
    settled = settle_device(device)
    torch.set_num_threads(threads or count_cores())
    return Decoder(checkpoint.load(Path(folder)), settled)


def train(
    *,
    source: str | None = None,
    target: str | None = None,
    text: str | None = None,
    documents: DocumentsBy | None = None,
    validation_source: str | None = None,
    validation_target: str | None = None,
    validation_text: str | None = None,
    validation_share: float | None = None,
    tokenizer: PiecesKind | None = None,
    vocabulary: int | None = None,
    separate_tokenizers: bool | None = None,
    size: SizeName | None = None,
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    feed_forward: int | None = None,
    dropout: float | None = None,
    context: int | None = None,
    batch_tokens: int | None = None,
    steps: int | None = None,
    learning_rate: float | None = None,
    warm_up: int | None = None,
    validate_every: int | None = None,
    save_every: int | None = None,
    log_every: int | None = None,
    precision: Precision | None = None,
    seed: int | None = None,
    threads: int | None = None,
    device: str | None = None,
    out: str | None = None,
    resume: bool | None = None,
    report: Callable[[Report], None] = lambda _: None,
) -> Trained:
    """Train a model from text files into a folder; what is not said is chosen from the data and the machine.

    The names are those of the command's flags; `report` is told after every step.

    >>> train(text="no-such-file.txt")
    Traceback (most recent call last):
    leftward.errors.TextError: there is no such file
    ...
    """
    said = dict(locals())
    del said["report"]
    return train_prepared(prepare(TrainWishes(**said)), report=report)


def evaluate(
    folder: str | Path,
    *,
    source: str | Path | None = None,
    target: str | Path | None = None,
    text: str | Path | None = None,
    strategy: Strategy = Greedy(),
    to: str | None = None,
    max_new: int | None = None,
    exact: bool = False,
    device: str | None = None,
    threads: int | None = None,
) -> Evaluation:
    """How good a model is on files it was not trained on: two that match line by line, or one text.

    >>> evaluate("no-such-folder", text="a.txt")
    Traceback (most recent call last):
    leftward.errors.CheckpointError: there is no such folder
    ...
    """
    decoder = load(folder, device=device, threads=threads)
    context, tokenizers = decoder.model.settings.context, (decoder.kit.source, decoder.kit.target)
    lines, sources = open_lines(decoder, source, target, text)
    if sources is None:
        documents = Documents(lines, decoder.kit.run.data.documents)
        whole = documents.by == "none"
        samples = Book(documents[0], tokenizers[1], context) if whole else Articles(documents, tokenizers[1], context)
        loss = _mean_loss(decoder, samples)
        return Evaluation(None, None, None, loss, math.exp(min(loss, 700)), len(documents), None)
    loss = _mean_loss(decoder, Pairs(sources, lines, tokenizers, context))
    written = decoder.translate(list(sources), strategy=strategy, to=to, max_new=max_new, exact=exact)
    quality = compare([one_line(each) for each in written], list(lines))
    perplexity = math.exp(min(loss, 700))
    return Evaluation(quality.bleu, quality.chrf, quality.exact, loss, perplexity, len(lines), quality.signature)


def open_lines(
    decoder: Decoder, source: str | Path | None, target: str | Path | None, text: str | Path | None
) -> tuple[Lines, Lines | None]:
    """The lines to judge, and those they translate, of the kind the model was trained on."""
    if decoder.reads_source:
        if source is None or target is None or text is not None:
            raise SettingsError("this model translates", hint="give --source and --target, two files that match")
        pair = Lines(target), Lines(source)
        require_pairs(pair[1], pair[0])
        return pair
    if text is None or source is not None or target is not None:
        raise SettingsError("this model continues text", hint="give --text, one file")
    return Lines(text), None


@torch.inference_mode()
def _mean_loss(decoder: Decoder, samples: Samples) -> float:
    """In nats per predicted token, as in validation."""
    total, count = 0.0, 0
    for batch in once(samples, max(4096, samples.context)):
        loss = loss_of(decoder.model, lesson_of(batch, decoder.device))
        total, count = total + loss.plain.double().item(), count + loss.count
    return total / count


def score(
    folder: str | Path,
    *,
    source: str | Path | None = None,
    target: str | Path | None = None,
    text: str | Path | None = None,
    device: str | None = None,
    threads: int | None = None,
) -> Iterator[Scored]:
    """How likely a model finds each line of a file, piece by piece.

    >>> next(score("no-such-folder", text="a.txt"))
    Traceback (most recent call last):
    leftward.errors.CheckpointError: there is no such folder
    ...
    """
    decoder = load(folder, device=device, threads=threads)
    lines, sources = open_lines(decoder, source, target, text)
    # So many at a time that their scores over the vocabulary fit in memory.
    for begin in range(0, len(lines), SLOTS):
        some = range(begin, min(begin + SLOTS, len(lines)))
        read = None if sources is None else [sources[number] for number in some]
        for scored in decoder.score([lines[number] for number in some], read):
            yield replace(scored, row=begin + scored.row)


def translate(folder: str | Path, texts: Sequence[str], *, strategy: Strategy = Greedy()) -> list[str]:
    """Translate some texts with the model of a folder; to translate often, `load` it once.

    >>> translate("no-such-folder", ["Hello world"])
    Traceback (most recent call last):
    leftward.errors.CheckpointError: there is no such folder
    ...
    """
    return load(folder).translate(texts, strategy=strategy)


def generate(folder: str | Path, prompt: str = "", *, strategy: Strategy = Sample(), max_new: int = 200) -> str:
    """Continue a prompt with the model of a folder; to do it often, `load` it once.

    >>> generate("no-such-folder", "To be")
    Traceback (most recent call last):
    leftward.errors.CheckpointError: there is no such folder
    ...
    """
    return load(folder).generate(prompt, strategy=strategy, max_new=max_new)


def audit(folder: str | Path, *, seed: int = 0) -> list[Finding]:
    """Run the laws that fit a trained model, in float64; every finding says whether it holds.

    >>> audit("no-such-folder")
    Traceback (most recent call last):
    leftward.errors.CheckpointError: there is no such folder
    ...
    """
    model = checkpoint.load(Path(folder)).model.double()
    sample = draw_sample(model.settings, seed=seed, longest=min(12, model.settings.context))
    return [law(model, sample) for law in laws.OF_A_MODEL]


def one_line(text: str) -> str:
    r"""A text with its line ends turned into spaces: one line in, one line out.

    >>> one_line("one\ntwo")
    'one two'
    """
    return text.replace("\r\n", " ").replace("\n", " ")
