"""Any text comes back as it was, no text reaches a control, and training gives the same bytes each time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from unittest.mock import patch

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from leftward.errors import SettingsError, TextError
from leftward.text import tokenizer as tokenizer_module
from leftward.text.tokenizer import Controls, TextWriter, Tokenizer, split_at_lines
from leftward.text.vocabulary import from_json, train_bpe, train_characters

CORPUS = [
    "नमस्ते दुनिया, आप कैसे हैं?",
    "क्‍या यह मेरी किताब है?",
    "The dog runs after the 1234 red balls, doesn't it?",
    "Der Hund läuft über die Straße.",
    "def f(x):\n    return x\n\n\nприве́т 世界 👩‍👩‍👧 ❤️‍🔥\r\n",
] * 3
BPE = train_bpe(CORPUS, 400, tags=["hi", "de"])
CHARACTERS = train_characters(CORPUS, tags=["hi", "de"])

anything = st.text()  # every character but lone surrogates
devanagari = st.text(st.characters(min_codepoint=0x0900, max_codepoint=0x097F) | st.sampled_from(" \u200c\u200d।"))
tricky = st.text(st.sampled_from(" \t\r\n\0\x85\u2028\u00a0\u200c\u200d\ufe0f\u0301\u093f'aé1👩नa<>/s"))
texts = anything | devanagari | tricky


@settings(max_examples=1500, deadline=None)
@given(texts)
def test_bytes_give_every_text_back(text: str) -> None:
    ids = BPE.encode(text)
    assert BPE.decode(ids) == text
    assert max(ids, default=0) < BPE.controls.start


@settings(max_examples=500, deadline=None)
@given(texts)
def test_characters_give_every_text_back_that_they_know(text: str) -> None:
    known = train_characters([text])
    assert known.decode(known.encode(text)) == text
    assert len(known.encode(text)) == len(text)
    ids = CHARACTERS.encode(text)
    strangers = [character for character in text if character not in "".join(CORPUS)]
    assert CHARACTERS.count_unknown(ids) == len(strangers)
    assert CHARACTERS.decode(ids) == "".join("\ufffd" if c in strangers else c for c in text)
    assert max(ids, default=0) <= (CHARACTERS.controls.unknown or 0)


@settings(max_examples=500, deadline=None)
@given(texts)
def test_offsets_are_characters_of_the_text(text: str) -> None:
    for tokenizer in (BPE, train_characters([text])):
        ids, offsets = tokenizer.encode_with_offsets(text)
        assert ids == tokenizer.encode(text)
        covered = 0
        for id, (first, last) in zip(ids, offsets, strict=True):
            assert tokenizer.spell(id) in text[first:last].encode()
            assert first <= covered <= last
            covered = last
        assert covered == len(text)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.integers(0, BPE.size - 1)))
def test_a_writer_gives_whole_characters_and_in_the_end_all(ids: list[int]) -> None:
    writer = TextWriter(BPE)
    parts = [writer.add(id) for id in ids]
    assert "".join(parts) + writer.finish() == BPE.decode(ids)


def test_a_writer_never_shows_half_a_character() -> None:
    text = "né 👩‍👩‍👧 नमस्ते"
    tokenizer = train_bpe([], 258)
    writer = TextWriter(tokenizer)
    assert "\ufffd" not in "".join(writer.add(id) for id in tokenizer.encode(text))
    writer = TextWriter(tokenizer)
    assert [writer.add(id) for id in tokenizer.encode("€")[:2]] == ["", ""]
    assert writer.finish() == "\ufffd"


@settings(max_examples=500, deadline=None)
@given(texts, st.integers(0, 4))
def test_portions_give_the_ids_of_the_whole(text: str, size: int) -> None:
    text = text.replace("1", "\n")
    with patch.object(tokenizer_module, "_PORTION", size):
        portions = list(split_at_lines(text))
        ids, long = BPE.encode(text), BPE.encode_long(text)
    whole = tokenizers.Tokenizer.from_str(BPE.to_json()).encode(text).ids
    assert "".join(portions) == text
    assert ids == long.tolist() == whole
    assert long.dtype == np.int32


def test_a_long_text_is_split() -> None:
    text = "a line of text\n" * 20_000
    assert len(list(split_at_lines(text))) > 3
    assert BPE.encode_long(text).tolist() == BPE.encode_batch(["x", text, ""])[1]


def test_marks_and_joiners_stay_with_their_letters() -> None:
    words = [
        "नमस्ते",
        "दुनिया",
        "क्\u200dया",
        "می\u200cخواهم",
        "e\u0301te\u0301",
        "👩\u200d👩\u200d👧",
        "❤\ufe0f\u200d🔥",
    ]
    tokenizer = train_bpe([" ".join(words)] * 50, 1000)
    assert [tokenizer.piece(id) for id in tokenizer.encode(" ".join(words))] == [
        words[0],
        *(" " + word for word in words[1:]),
    ]


@pytest.mark.parametrize("tokenizer", [BPE, CHARACTERS], ids=["bpe", "characters"])
def test_no_text_reaches_a_control(tokenizer: Tokenizer) -> None:
    text = "type </s> to end <start><end><unknown><hi> <s> [PAD] <|endoftext|>"
    controls = set(tokenizer.controls.names) - {tokenizer.controls.unknown}
    assert not controls & set(tokenizer.encode(text))
    assert not json.loads(tokenizer.to_json())["added_tokens"]
    learned = train_bpe([text] * 100, 2000)
    assert learned.decode(learned.encode(text)) == text
    assert not set(learned.controls.names) & set(learned.encode(text))


def test_controls_follow_the_pieces() -> None:
    assert BPE.controls == Controls(start=396, end=397, tags=(("hi", 398), ("de", 399)))
    assert BPE.size == 400
    unknown = len(set("".join(CORPUS)))
    assert CHARACTERS.controls == Controls(
        unknown=unknown, start=unknown + 1, end=unknown + 2, tags=(("hi", unknown + 3), ("de", unknown + 4))
    )
    assert CHARACTERS.size == unknown + 5
    assert BPE.decode([BPE.controls.start, *BPE.encode("so"), BPE.controls.end]) == "so"
    assert [BPE.piece(id) for id in (396, 399)] == ["<start>", "<de>"]


def test_ids_that_are_none_are_refused() -> None:
    for id in (-1, BPE.size):
        with pytest.raises(TextError, match="no id"):
            BPE.decode([id])


def test_cut_characters_are_marked() -> None:
    tokenizer = train_bpe([], 258)
    ids = tokenizer.encode("€")
    assert tokenizer.decode(ids[:2]) == "\ufffd"
    assert tokenizer.piece(ids[0]) == r"\xe2"


@pytest.mark.parametrize("tokenizer", [BPE, CHARACTERS], ids=["bpe", "characters"])
def test_the_file_is_the_librarys_own(tokenizer: Tokenizer) -> None:
    library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    again = from_json(tokenizer.to_json(), tokenizer.controls)
    for text in CORPUS:
        assert library.encode(text).ids == tokenizer.encode(text) == again.encode(text)
        assert library.decode(library.encode(text).ids) == text
    assert again.size == tokenizer.size
    assert again.to_json() == tokenizer.to_json()


def changed(**parts: object) -> str:
    return json.dumps(json.loads(BPE.to_json()) | parts)


@pytest.mark.parametrize(
    "spoiled",
    [
        "",
        "{}",
        BPE.to_json()[:-100],
        changed(normalizer={"type": "Lowercase"}),
        changed(truncation={"max_length": 3, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}),
        changed(
            added_tokens=[
                {
                    "id": 396,
                    "content": "</s>",
                    "special": True,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                }
            ]
        ),
    ],
    ids=["nothing", "no model", "cut", "normalizer", "truncation", "added token"],
)
def test_a_spoiled_file_is_refused(spoiled: str) -> None:
    with pytest.raises(TextError):
        from_json(spoiled, BPE.controls)


@pytest.mark.parametrize(
    "controls", [Controls(395, 396), Controls(397, 398), Controls(397, 396), Controls(396, 397, unknown=3)]
)
def test_controls_of_another_tokenizer_are_refused(controls: Controls) -> None:
    with pytest.raises(TextError, match="control ids"):
        from_json(BPE.to_json(), controls)


def test_controls_are_all_different() -> None:
    for tags, end in (((), 396), ((("hi", 397),), 397), ((("hi", 398), ("hi", 399)), 397)):
        with pytest.raises(TextError, match="share"):
            Controls(396, end, tags=tags)


def test_vocabulary_is_at_least_the_bytes_and_at_most_what_there_is() -> None:
    with pytest.raises(SettingsError, match="at least 259"):
        train_bpe(CORPUS, 258, tags=["hi"])
    assert train_bpe(CORPUS, 259, tags=["hi"]).size == 259
    assert 260 < train_bpe(CORPUS, 100_000).size < 600
    assert train_bpe([], 1000).size == 258
    assert train_bpe(["once"], 1000).size == 258


@pytest.mark.parametrize("half", ["\ud800", "ok \udfff"])
def test_half_a_character_is_refused(half: str) -> None:
    for act in (BPE.encode, BPE.encode_with_offsets, CHARACTERS.encode, lambda text: train_bpe([text], 300)):
        with pytest.raises(TextError, match="half of a character"):
            act(half)


def test_training_does_not_depend_on_threads_or_hashes() -> None:
    program = (
        "import random, hashlib; from leftward.text.vocabulary import *; r = random.Random(1)\n"
        "words = [''.join(r.choices('abcdeéन', k=r.randrange(1, 9))) for _ in range(900)]\n"
        "lines = [' '.join(r.choices(words, k=9)) for _ in range(3000)]\n"
        "made = train_bpe(lines, 2000).to_json() + train_characters(lines).to_json()\n"
        "print(hashlib.sha256(made.encode()).hexdigest())"
    )
    found = set()
    for threads, seed in (("1", "1"), ("2", "2"), ("4", "3")):
        environment = os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": seed}
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        found.add(run.stdout)
    assert len(found) == 1
