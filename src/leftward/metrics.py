"""How good translations are, beside the true ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Quality(NamedTuple):
    """Scores from 0 to 100, and how BLEU and chrF were computed."""

    bleu: float
    chrf: float
    exact: float
    signature: str


def compare(written: Sequence[str], true: Sequence[str]) -> Quality:
    """BLEU (13a, cased, on plain text), chrF2, and the share of texts that are right to the letter.

    >>> compare(["The cat sat on the mat."], ["The cat sat on the mat."])[:3]
    (100.0, 100.0, 100.0)
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    bleu, chrf = BLEU(), CHRF()
    by_words = bleu.corpus_score(list(written), [list(true)]).score
    by_letters = chrf.corpus_score(list(written), [list(true)]).score
    right = sum(one == other for one, other in zip(written, true, strict=True))
    signature = f"BLEU {bleu.get_signature()} chrF {chrf.get_signature()}"
    return Quality(round(by_words, 4), round(by_letters, 4), round(100 * right / len(written), 4), signature)
