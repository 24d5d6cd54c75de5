"""Small models of every mix of parts: a pairwise covering array, made here and not picked by hand.

In the array every two values of any two parts meet in at least one model.
"""

from __future__ import annotations

import random
from itertools import combinations, product

import torch

from leftward.model.transformer import Transformer
from leftward.settings import Model, Stack

PARTS: dict[str, tuple] = {
    "norm_place": ("before", "after"),
    "norm": ("layer", "rms"),
    "positions": ("sinusoidal", "learned", "rotary", "relative", "alibi"),
    "activation": ("relu", "gelu", "gated_silu", "gated_gelu"),
    "key_heads": (0, 1, 2),
    "tie": ("none", "target-output", "all"),
    "window": (0, 4, (0, 3, 5)),
    "head_size": (16, 24, 64),
    "depth": (1, 3),
    "encoder": ("none", "alike", "asymmetric"),
    "path": ("plain", "fused"),
    "biases": (True, False),
}

Choice = dict[str, object]


def is_possible(choice: Choice) -> bool:
    """A window for each of three layers needs three layers; a choice may still be half made."""
    return not (isinstance(choice.get("window"), tuple) and choice.get("depth", 3) != 3)


def covering_array(seed: int = 1) -> list[Choice]:
    """Choices in which every two values of any two parts meet."""
    draw = random.Random(seed)
    missing = {
        ((one, value), (other, another))
        for one, other in combinations(PARTS, 2)
        for value, another in product(PARTS[one], PARTS[other])
        if is_possible({one: value, other: another})
    }
    array = []
    while missing:
        best, covered = None, set()
        for _ in range(40):
            choice: Choice = dict(draw.choice(sorted(missing, key=repr)))
            for part in draw.sample(list(PARTS), len(PARTS)):
                if part not in choice:
                    options = [value for value in PARTS[part] if is_possible({**choice, part: value})]
                    choice[part] = max(
                        draw.sample(options, len(options)),
                        key=lambda value: len(met({**choice, part: value}) & missing),
                    )
            if len(met(choice) & missing) > len(covered):
                best, covered = choice, met(choice) & missing
        array.append(best)
        missing -= covered
    return array


def met(choice: Choice) -> set:
    """The pairs of values that a choice brings together."""
    known = [(part, choice[part]) for part in PARTS if part in choice]
    return set(combinations(known, 2))


def settings_of(choice: Choice) -> Model:
    """The settings of a choice, in a size that is quick."""
    depth = choice["depth"]
    head_size = choice["head_size"]
    decoder = Stack(
        layers=depth,
        heads=4,
        key_heads=choice["key_heads"],
        head_size=head_size,
        feed_forward=24,
        window=choice["window"],
    )
    encoder = {
        "none": None,
        "alike": decoder,
        # Nothing of the encoder has the decoder's size.
        "asymmetric": Stack(layers=2, heads=2, head_size=10, feed_forward=40, window=5),
    }[choice["encoder"]]
    tie = choice["tie"]
    return Model(
        vocabulary=30,
        source_vocabulary=21 if encoder is not None and tie != "all" else 0,
        width=20,
        context=40,
        decoder=decoder,
        encoder=encoder,
        positions=choice["positions"],
        position_offset=2 if choice["positions"] == "learned" else 0,
        norm=choice["norm"],
        norm_place=choice["norm_place"],
        activation=choice["activation"],
        attention_bias=choice["biases"],
        feed_forward_bias=choice["biases"],
        norm_bias=choice["biases"],
        output_bias=choice["biases"],
        embedding_norm=choice["biases"],
        logit_scale=0.5 if choice["norm"] == "rms" else 1.0,
        attention_scale=1.0 if choice["positions"] == "relative" else 0.0,
        tie=tie,
    )


def build(settings: Model, seed: int = 0, dtype: torch.dtype = torch.float64) -> Transformer:
    """A model whose biases are not zero, so that a lost one shows."""
    torch.manual_seed(seed)
    model = Transformer(settings).to(dtype).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(std=0.1)
    return model


CHOICES = covering_array()


def describe(choice: Choice) -> str:
    """A name for the test's report."""
    return "-".join(str(value).replace(" ", "") for value in choice.values())


def a_model(**changes: object) -> Transformer:
    """One sound model to plant a fault in."""
    stack = Stack(layers=2, heads=2, feed_forward=24)
    settings = {"vocabulary": 30, "width": 16, "context": 40, "decoder": stack, "encoder": stack, **changes}
    return build(Model(**settings))
