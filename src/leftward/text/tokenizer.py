"""Text to ids and back, without losing a character.

Two kinds: pieces of words made of bytes (byte-pair encoding, so any text can be written), or single
characters. The ids that steer a model (start, end, a language) are not part of the `tokenizers` library's
file and stand in no table that text is looked up in: a text that says "</s>" is four ordinary characters.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers, trainers

from leftward.errors import SettingsError, TextError

# The library's own byte-level splitter knows letters but not the marks on them, and cuts Hindi at every vowel
# sign. Here marks and joiners (U+200C, U+200D) stay with what they join, emoji included; a word takes the
# blank before it.
_WORDS = (
    r" ?[\p{L}\p{M}\x{200c}\x{200d}]+| ?\p{N}{1,3}\p{M}*| ?[^\s\p{L}\p{M}\p{N}][^\s\p{L}\p{N}]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTES = 256
_PORTION = 1 << 16
_UNKNOWN = "<unknown>"  # out of reach of text, which is looked up one character at a time


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

    @property
    def names(self) -> dict[int, str]:
        """Each id with the name it is shown by.

        >>> Controls(start=300, end=301, tags=(("hi", 302),)).names
        {300: '<start>', 301: '<end>', 302: '<hi>'}
        """
        unknown = {} if self.unknown is None else {self.unknown: _UNKNOWN}
        return (
            unknown | {self.start: "<start>", self.end: "<end>"} | {id: f"<{name}>" for name, id in self.tags}
        )


class Tokenizer:
    """Turns text into ids and ids into the same text.

    >>> tokenizer = train_bpe(["so low so slow"] * 2, vocabulary=265)
    >>> ids = tokenizer.encode("so slow")
    >>> [tokenizer.piece(id) for id in ids], tokenizer.decode(ids)
    (['so', ' slow'], 'so slow')
    """

    def __init__(self, library: tokenizers.Tokenizer, controls: Controls) -> None:
        vocabulary = library.get_vocab(with_added_tokens=False)
        pieces = sorted(set(vocabulary) - {_UNKNOWN}, key=vocabulary.__getitem__)
        self.size = len(pieces) + len(controls.names)
        steering = [id for id in (controls.unknown, controls.start, controls.end) if id is not None]
        steering += [id for _, id in controls.tags]
        if [vocabulary[piece] for piece in pieces] + steering != list(range(self.size)):
            raise TextError(
                "the control ids do not fit the tokenizer", hint="they must follow its pieces, one by one"
            )
        self.controls = controls
        self._library = library
        bytewise = isinstance(library.model, models.BPE)
        self._spelling = [bytes(map(_BYTE_OF.__getitem__, p)) if bytewise else p.encode() for p in pieces]

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

        >>> train_characters(["no"]).encode_with_offsets("on")
        ([1, 0], [(0, 1), (1, 2)])
        """
        try:
            encoding = self._library.encode(text, add_special_tokens=False)
        except TypeError:  # all the library says of half a character
            _require_unicode([text])
            raise
        return encoding.ids, encoding.offsets

    def spell(self, id: int) -> bytes:
        """The bytes an id stands for: none for a control, those of U+FFFD for an unknown character."""
        if not 0 <= id < self.size:
            raise TextError(f"{id} is no id of this tokenizer", hint=f"its ids are 0 to {self.size - 1}")
        if id == self.controls.unknown:
            return "\ufffd".encode()
        return self._spelling[id] if id < len(self._spelling) else b""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, without the controls; bytes that make no character become U+FFFD."""
        return b"".join(map(self.spell, ids)).decode("utf-8", "replace")

    def piece(self, id: int) -> str:
        r"""What to show for one id; bytes of a cut character as in \xe0.

        >>> tokenizer = train_characters(["no"])
        >>> [tokenizer.piece(id) for id in range(tokenizer.size)]
        ['n', 'o', '<unknown>', '<start>', '<end>']
        """
        return self.controls.names.get(id) or self.spell(id).decode("utf-8", "backslashreplace")

    def count_unknown(self, ids: Sequence[int] | NDArray[np.int32]) -> int:
        """How many ids stand for a character never seen in training."""
        return (
            0
            if self.controls.unknown is None
            else int(np.count_nonzero(np.asarray(ids) == self.controls.unknown))
        )

    def to_json(self) -> str:
        """The library's own file format; the controls are kept elsewhere."""
        return self._library.to_str()

    def _encode(self, texts: list[str]) -> list[list[int]]:
        try:
            encodings = self._library.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:
            _require_unicode(texts)
            raise
        return [encoding.ids for encoding in encodings]


class TextWriter:
    """Gives the text of ids as they arrive, holding a character back until its last byte is there.

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


def train_bpe(texts: Iterable[str], vocabulary: int, tags: Sequence[str] = ()) -> Tokenizer:
    """Learn the pieces of words that texts are made of; `vocabulary` counts the controls too.

    Texts too small to fill the vocabulary give a smaller one.

    >>> train_bpe(["so slow so low"] * 2, vocabulary=1000, tags=["hi"]).size
    266
    """
    least = _BYTES + 2 + len(tags)
    if vocabulary < least:
        raise SettingsError(
            f"a vocabulary of {vocabulary} is too small for byte-pair encoding",
            where="vocabulary",
            hint=f"ask for at least {least}: {_BYTES} bytes and {least - _BYTES} controls",
        )
    library = _bytewise()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - 2 - len(tags),
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    portions = (portion for text in texts for portion in split_at_lines(text))
    try:
        library.train_from_iterator(portions, trainer)
    except UnicodeEncodeError as error:
        raise _lone_surrogate(error) from None
    return Tokenizer(library, _controls(library.get_vocab_size(), tags))


def train_characters(texts: Iterable[str], tags: Sequence[str] = ()) -> Tokenizer:
    """Give every character of the texts an id, in the order of Unicode, and one id to all others.

    >>> train_characters(["no", "on"]).encode("no!")
    [0, 1, 2]
    """
    characters = sorted(set().union(*texts))
    library = _characterwise({character: id for id, character in enumerate([*characters, _UNKNOWN])})
    return Tokenizer(library, _controls(len(characters), tags, unknown=True))


def from_json(text: str, controls: Controls) -> Tokenizer:
    """Make a tokenizer again from `to_json` and its controls.

    >>> tokenizer = train_characters(["no"])
    >>> from_json(tokenizer.to_json(), tokenizer.controls).encode("on")
    [1, 0]
    """
    try:
        library = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise TextError(f"this is no tokenizer: {error}", hint="take an intact copy of the model") from None
    # Anything but the pieces must be as we make it: an added token or a normalizer would break the round
    # trip.
    if _frame(library) not in (_frame(_bytewise()), _frame(_characterwise({_UNKNOWN: 0}))):
        raise TextError(
            "this tokenizer is of another kind than Leftward makes", hint="train one with Leftward"
        )
    return Tokenizer(library, controls)


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


def _bytewise() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    words = pre_tokenizers.Split(tokenizers.Regex(_WORDS), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([words, to_bytes])
    library.decoder = decoders.ByteLevel()
    return library


def _characterwise(vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=_UNKNOWN))
    library.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    library.decoder = decoders.Fuse()
    return library


def _frame(library: tokenizers.Tokenizer) -> dict[str, object]:
    parts = json.loads(library.to_str())
    return parts | {
        "model": {name: part for name, part in parts["model"].items() if name not in ("vocab", "merges")}
    }


def _controls(pieces: int, tags: Sequence[str], *, unknown: bool = False) -> Controls:
    start = pieces + unknown
    return Controls(
        start=start,
        end=start + 1,
        unknown=pieces if unknown else None,
        tags=tuple((name, start + 2 + place) for place, name in enumerate(tags)),
    )


def _require_unicode(texts: Sequence[str]) -> None:
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise _lone_surrogate(error) from None


def _lone_surrogate(error: UnicodeEncodeError) -> TextError:
    return TextError(
        f"U+{ord(error.object[error.start]):04X} is half of a character",
        where=f"character {error.start + 1} of the text",
        hint="read the text as UTF-8; a lone surrogate cannot be written in it",
    )


def _byte_of() -> dict[str, int]:
    """Pieces spell each byte as a visible character: itself, or one from U+0100 on if it has no shape."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    unshown = [byte for byte in range(_BYTES) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {
        chr(0x100 + place): byte for place, byte in enumerate(unshown)
    }


_BYTE_OF = _byte_of()
