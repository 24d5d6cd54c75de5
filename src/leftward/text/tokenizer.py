"""Text to ids and back, without losing a character.

Two kinds: pieces of words made of bytes (byte-pair encoding, so any text can be written), or single
characters. The ids that steer a model (start, end, a language) are not part of the `tokenizers` library's
file and stand in no table that text is looked up in: a text that says "</s>" is ordinary text.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import models

from leftward.errors import TextError

_BYTES = 256
_PORTION = 1 << 16
UNKNOWN = "<unknown>"  # out of reach of text, which is looked up one character at a time


@dataclass(frozen=True)
class Controls:
    """The ids no text can produce.

    They stand directly after the pieces: so the id of a piece is the library's own, and one more language
    does not move any of the others.
    """

    start: int
    end: int
    unknown: int | None = None
    tags: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        count = 2 + (self.unknown is not None) + len(self.tags)
        if len(self.names) < count or len(set(self.names.values())) < count:
            raise TextError("two controls share an id or a name", hint=f"mend one of {self.names}")

    @property
    def names(self) -> dict[int, str]:
        """Each id with the name it is shown by.

        >>> Controls(start=300, end=301, tags=(("hi", 302),)).names
        {300: '<start>', 301: '<end>', 302: '<hi>'}
        """
        names = {} if self.unknown is None else {self.unknown: UNKNOWN}
        names |= {self.start: "<start>", self.end: "<end>"}
        return names | {id: f"<{name}>" for name, id in self.tags}


class Tokenizer:
    """Turns text into ids and ids into the same text.

    >>> from leftward.text.vocabulary import train_bpe
    >>> tokenizer = train_bpe(["so low so slow"] * 2, vocabulary=265)
    >>> ids = tokenizer.encode("so slow")
    >>> [tokenizer.piece(id) for id in ids], tokenizer.decode(ids)
    (['so', ' slow'], 'so slow')
    """

    def __init__(self, library: tokenizers.Tokenizer, controls: Controls) -> None:
        vocabulary = library.get_vocab(with_added_tokens=False)
        pieces = sorted(set(vocabulary) - {UNKNOWN}, key=vocabulary.__getitem__)
        steering = list(controls.names)
        self.size = len(pieces) + len(steering)
        if [vocabulary[piece] for piece in pieces] + steering != list(range(self.size)):
            what = "the control ids do not fit the tokenizer"
            raise TextError(what, hint="they must follow its pieces one by one, as they did when it was made")
        self.controls = controls
        self._library = library
        bytewise = isinstance(library.model, models.BPE)
        self._spelling = [bytes(map(_BYTE_OF.__getitem__, p)) if bytewise else p.encode() for p in pieces]
        self._spelling += ["\ufffd".encode() if id == controls.unknown else b"" for id in steering]

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without a start or an end."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, on all cores."""
        portions = [list(split_at_lines(text)) for text in texts]
        ids = iter(self._encode(list(chain.from_iterable(portions))))
        return [list(chain.from_iterable(islice(ids, len(parts)))) for parts in portions]

    def encode_long(self, text: str) -> NDArray[np.int32]:
        """The ids of a whole book, in little memory."""
        portions = split_at_lines(text)
        found = [np.empty(0, np.int32)]
        while some := list(islice(portions, 64)):
            found += [np.array(ids, np.int32) for ids in self._encode(some)]
        return np.concatenate(found)

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a text, and for each the characters it came from: `text[first:last]`.

        Several pieces can come from one character, whose bytes they share.

        >>> from leftward.text.vocabulary import train_characters
        >>> train_characters(["no"]).encode_with_offsets("on")
        ([1, 0], [(0, 1), (1, 2)])
        """
        try:
            encoding = self._library.encode(text, add_special_tokens=False)
        except TypeError:  # all the library says of half a character
            require_unicode([text])
            raise
        return encoding.ids, encoding.offsets

    def spell(self, id: int) -> bytes:
        """The bytes an id stands for: none for a control, those of U+FFFD for an unknown character."""
        if not 0 <= id < self.size:
            raise TextError(f"{id} is no id of this tokenizer", hint=f"its ids are 0 to {self.size - 1}")
        return self._spelling[id]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without the controls; bytes that make no character become U+FFFD."""
        return b"".join(map(self.spell, ids)).decode("utf-8", "replace")

    def piece(self, id: int) -> str:
        r"""What to show for one id; bytes of a cut character as in \xe0.

        >>> from leftward.text.vocabulary import train_characters
        >>> tokenizer = train_characters(["no"])
        >>> [tokenizer.piece(id) for id in range(tokenizer.size)]
        ['n', 'o', '<unknown>', '<start>', '<end>']
        """
        return self.controls.names.get(id) or self.spell(id).decode("utf-8", "backslashreplace")

    def count_unknown(self, ids: Sequence[int] | NDArray[np.int32]) -> int:
        """How many ids stand for a character never seen in training."""
        unknown = self.controls.unknown
        return 0 if unknown is None else int(np.count_nonzero(np.asarray(ids) == unknown))

    def to_json(self) -> str:
        """The library's own file format; the controls are kept elsewhere."""
        return self._library.to_str()

    def _encode(self, texts: list[str]) -> list[list[int]]:
        try:
            encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:
            require_unicode(texts)
            raise
        return [encoding.ids for encoding in encodings]


class TextWriter:
    """Gives the text of ids as they arrive, holding a character back until its last byte is there.

    >>> from leftward.text.vocabulary import train_bpe
    >>> tokenizer = train_bpe([], vocabulary=258)
    >>> writer = TextWriter(tokenizer)
    >>> [writer.add(id) for id in tokenizer.encode("né")], writer.finish()
    (['n', '', 'é'], '')
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, id: int) -> str:
        """The characters that are whole now."""
        return self._decoder.decode(self._tokenizer.spell(id))

    def finish(self) -> str:
        """U+FFFD if a character was never finished."""
        return self._decoder.decode(b"", final=True)


def split_at_lines(text: str) -> Iterator[str]:
    """Cut a long text into portions that are tokenized apart just as they would be together.

    A piece never reaches from a line end into a visible character, so there it may be cut.
    """
    first, search = 0, _PORTION
    while end := text.find("\n", search) + 1:
        search = end
        if end < len(text) and not text[end].isspace():
            yield text[first:end]
            first, search = end, end + _PORTION
    yield text[first:]


def require_unicode(texts: Iterable[str]) -> None:
    """Refuse half a character (a lone surrogate), which Python can hold but UTF-8 cannot.

    >>> require_unicode(["ab\\ud800"])
    Traceback (most recent call last):
    leftward.errors.TextError: U+D800 is half of a character
    ...
    """
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise TextError(
                f"U+{ord(text[error.start]):04X} is half of a character",
                where=f"character {error.start + 1} of the text",
                hint="read the text as UTF-8, which has no such halves",
            ) from None


def _byte_of() -> dict[str, int]:
    """Pieces spell each byte as a visible character: itself, or one from U+0100 on if it has no shape."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    unshown = [byte for byte in range(_BYTES) if byte not in shown]
    moved = {chr(0x100 + place): byte for place, byte in enumerate(unshown)}
    return moved | {chr(byte): byte for byte in shown}


_BYTE_OF = _byte_of()
