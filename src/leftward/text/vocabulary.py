"""What a tokenizer knows, learned from text or read back from a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from leftward.errors import SettingsError, TextError
from leftward.text.tokenizer import UNKNOWN, Controls, Tokenizer, require_unicode, split_at_lines

# The library's own byte-level splitter knows letters but not the marks on them, and cuts Hindi at every vowel
# sign. Here marks and joiners (U+200C, U+200D) stay with what they join, emoji included; a word takes the
# blank before it.
_WORDS = (
    r" ?[\p{L}\p{M}\x{200c}\x{200d}]+| ?\p{N}{1,3}\p{M}*| ?[^\s\p{L}\p{M}\p{N}][^\s\p{L}\p{N}]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTES = 256


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
        min_frequency=2,  # what was seen once is no pattern
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    portions = (portion for text in texts for portion in split_at_lines(text))
    try:
        library.train_from_iterator(portions, trainer)
    except UnicodeEncodeError as error:
        require_unicode([error.object])
        raise
    return Tokenizer(library, _controls(library.get_vocab_size(), tags))


def train_characters(texts: Iterable[str], tags: Sequence[str] = ()) -> Tokenizer:
    """Give every character of the texts an id, in the order of Unicode, and one id to all others.

    >>> train_characters(["no", "on"]).encode("no!")
    [0, 1, 2]
    """
    characters = sorted(set().union(*texts))
    library = _characterwise({character: id for id, character in enumerate([*characters, UNKNOWN])})
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
    # All but the pieces must be as we make it: an added token or a normalizer would break the round trip.
    if _frame(library) not in (_frame(_bytewise()), _frame(_characterwise({UNKNOWN: 0}))):
        raise TextError("this tokenizer is not of a kind that Leftward makes", hint="train one with Leftward")
    return Tokenizer(library, controls)


def _bytewise() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    words = pre_tokenizers.Split(tokenizers.Regex(_WORDS), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.pre_tokenizer = pre_tokenizers.Sequence([words, to_bytes])
    library.decoder = decoders.ByteLevel()
    return library


def _characterwise(vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    library.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    library.decoder = decoders.Fuse()
    return library


def _frame(library: tokenizers.Tokenizer) -> dict[str, object]:
    parts = json.loads(library.to_str())
    del parts["model"]["vocab"]
    parts["model"].pop("merges", None)
    return parts


def _controls(pieces: int, tags: Sequence[str], *, unknown: bool = False) -> Controls:
    start = pieces + unknown
    return Controls(
        start=start,
        end=start + 1,
        unknown=pieces if unknown else None,
        tags=tuple((name, start + 2 + place) for place, name in enumerate(tags)),
    )
