"""Settings: what cannot be is refused in a sentence that says where, and the rest follows."""

import subprocess
import sys

import pytest

from leftward.errors import SettingsError
from leftward.settings import Model, Stack, Training

STACK = Stack(layers=2, heads=4)


def training(**changes):
    required = ("steps", "batch_tokens", "learning_rate", "warm_up", "validate_every", "save_every")
    return Training(**{**dict.fromkeys(required, 5), **changes})


IMPOSSIBLE = [
    ("layers", lambda: Stack(layers=0)),
    ("heads", lambda: Stack(heads=0)),
    ("feed_forward", lambda: Stack(feed_forward=-1)),
    ("head_size", lambda: Stack(head_size=-1)),
    ("key_heads", lambda: Stack(heads=4, key_heads=3)),
    ("key_heads", lambda: Stack(heads=4, key_heads=8)),
    ("window", lambda: Stack(window=-1)),
    ("window", lambda: Stack(layers=2, window=(4, -1))),
    ("window", lambda: Stack(layers=2, window=(1, 2, 3))),
    ("window", lambda: Stack(layers=2, window=())),
    ("vocabulary", lambda: Model(vocabulary=1, decoder=STACK)),
    ("source_vocabulary", lambda: Model(vocabulary=9, source_vocabulary=-1, decoder=STACK)),
    ("width", lambda: Model(vocabulary=9, width=0, decoder=STACK)),
    ("context", lambda: Model(vocabulary=9, context=0, decoder=STACK)),
    ("position_offset", lambda: Model(vocabulary=9, position_offset=-1, decoder=STACK)),
    ("dropout", lambda: Model(vocabulary=9, dropout=1.0, decoder=STACK)),
    ("dropout", lambda: Model(vocabulary=9, dropout=-0.1, decoder=STACK)),
    ("dropout", lambda: Model(vocabulary=9, dropout=float("nan"), decoder=STACK)),
    ("norm_epsilon", lambda: Model(vocabulary=9, norm_epsilon=0.0, decoder=STACK)),
    ("norm_epsilon", lambda: Model(vocabulary=9, norm_epsilon=float("nan"), decoder=STACK)),
    ("rotary_base", lambda: Model(vocabulary=9, rotary_base=-1.0, decoder=STACK)),
    ("decoder.heads", lambda: Model(vocabulary=9, width=10, decoder=STACK)),
    ("encoder.heads", lambda: Model(vocabulary=9, width=8, decoder=STACK, encoder=Stack(heads=3))),
    ("decoder.head_size", lambda: Model(vocabulary=9, width=12, positions="rotary", decoder=STACK)),
    ("tie", lambda: Model(vocabulary=9, source_vocabulary=8, decoder=STACK, encoder=STACK)),
    ("tie", lambda: Model(vocabulary=9, decoder=STACK, tie="source-target")),
    ("steps", lambda: training(steps=0)),
    ("batch_tokens", lambda: training(batch_tokens=0)),
    ("warm_up", lambda: training(warm_up=-1)),
    ("learning_rate", lambda: training(learning_rate=0.0)),
    ("learning_rate", lambda: training(learning_rate=float("nan"))),
    ("clip", lambda: training(clip=float("inf"))),
    ("smoothing", lambda: training(smoothing=1.0)),
    ("weight_decay", lambda: training(weight_decay=-0.1)),
    ("betas", lambda: training(betas=(0.9,))),
    ("betas", lambda: training(betas=(0.9, 1.0))),
]


@pytest.mark.parametrize(("where", "make"), IMPOSSIBLE)
def test_what_cannot_be_is_refused(where, make):
    with pytest.raises(SettingsError) as caught:
        make()
    assert caught.value.where == where
    assert caught.value.hint


@pytest.mark.parametrize("changes", [{"relative_buckets": 3}, {"relative_distance": 8}, {"relative_distance": 16}])
def test_buckets_that_cannot_tell_distances_apart_are_refused(changes):
    # Half of 32 buckets are for single distances up to 16: the growing ones need room beyond.
    stack = Stack(heads=2)
    with pytest.raises(SettingsError):
        Model(vocabulary=9, width=8, positions="relative", decoder=stack, encoder=stack, **changes)


def test_defaults_follow_from_each_other():
    model = Model(vocabulary=9, width=24, decoder=Stack(layers=2, heads=4, head_size=10, window=(0, 3)))
    assert (model.source_size, model.has_encoder, model.has_final_norm) == (9, False, False)
    assert (model.head_size(model.decoder), model.head_size(Stack(heads=4))) == (10, 6)
    assert [model.decoder.window_of(layer) for layer in range(2)] == [None, 3]
    before = Model(vocabulary=9, width=24, decoder=STACK, norm_place="before", source_vocabulary=5)
    assert (before.has_final_norm, before.source_size) == (True, 5)
    assert not Model(vocabulary=9, width=24, decoder=STACK, norm_place="before", final_norm=False).has_final_norm


def test_settings_need_no_torch():
    code = "import sys, leftward.settings, leftward.tables; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
