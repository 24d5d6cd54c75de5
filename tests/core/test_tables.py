"""Settings as tables and TOML: what is read back is what was written, and what is unknown is refused."""

import tomllib
from dataclasses import asdict, fields
from typing import get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as some

from leftward.errors import SettingsError
from leftward.settings import ControlIds, Data, Model, Pieces, Positions, Run, Stack, Training
from leftward.tables import from_table, from_toml, to_table, to_toml

STACK = Stack(layers=2, heads=4)
MODEL = {"vocabulary": 9, "width": 8, "decoder": {"heads": 2}}

few = some.integers(1, 5)
share = some.floats(0, 0.99)
positive = some.floats(1e-9, 1e9)


@some.composite
def stacks(draw):
    key_heads = draw(few)
    layers = draw(few)
    window = some.integers(0, 9)
    return Stack(
        layers=layers,
        heads=key_heads * draw(few),
        feed_forward=draw(few),
        key_heads=draw(some.sampled_from((0, key_heads))),
        head_size=2 * draw(few),
        window=draw(window | some.tuples(*[window] * layers)),
    )


@some.composite
def models(draw):
    encoder = draw(some.none() | stacks())
    ties = ("none", "target-output", "all") if encoder is None else ("none", "source-target", "target-output", "all")
    hints = get_type_hints(Model)

    def one_of(name):
        return draw(some.sampled_from(get_args(hints[name])))

    return Model(
        vocabulary=draw(some.integers(2, 99)),
        decoder=draw(stacks()),
        encoder=encoder,
        width=draw(few),
        context=draw(few),
        dropout=draw(share),
        positions=one_of("positions"),
        position_offset=draw(some.integers(0, 3)),
        rotary_base=draw(positive),
        norm=one_of("norm"),
        norm_place=one_of("norm_place"),
        norm_epsilon=draw(positive),
        norm_bias=draw(some.booleans()),
        final_norm=draw(some.none() | some.booleans()),
        embedding_norm=draw(some.booleans()),
        activation=one_of("activation"),
        attention_bias=draw(some.booleans()),
        output_bias=draw(some.booleans()),
        attention_scale=draw(positive),
        logit_scale=draw(positive),
        tie=draw(some.sampled_from(ties)),
    )


@some.composite
def runs(draw):
    ids = some.builds(ControlIds, few, few, some.none() | few, some.lists(some.text()).map(tuple))
    training = Training(9, 9, draw(positive), 0, 9, 9, betas=(draw(share), draw(share)), smoothing=draw(share))
    return Run(
        draw(models()),
        Pieces(draw(some.sampled_from(("bpe", "characters"))), draw(ids), draw(some.none() | ids)),
        draw(some.builds(Data, some.text(), some.text())),
        draw(some.none() | some.just(training)),
        tuple(draw(some.lists(some.text()))),
    )


@given(runs())
def test_what_is_written_is_read_back(run):
    assert from_table(Run, to_table(run)) == run
    assert from_toml(Run, to_toml(run)) == run
    assert tomllib.loads(to_toml(run)) == to_table(run)


def test_a_torn_file_says_where():
    text = to_toml(Model(vocabulary=9, width=8, decoder=STACK))
    with pytest.raises(SettingsError, match="no TOML") as caught:
        from_toml(Model, text[: text.index("[decoder") + 4], where="settings.toml")
    assert caught.value.where == "settings.toml"


def refusal(kind, table):
    with pytest.raises(SettingsError) as caught:
        from_table(kind, table)
    return caught.value


@given(some.sampled_from([field.name for field in fields(Model)]), some.data())
def test_an_unknown_key_names_the_nearest(name, data):
    cut = data.draw(some.integers(1, len(name) - 1))
    typo = name[: cut - 1] + name[cut:]  # one letter is missing
    if typo in get_type_hints(Model):
        return
    error = refusal(Model, {**MODEL, typo: 1})
    assert f'"{typo}"' in error.what
    assert "did you mean" in error.hint


def test_an_unknown_key_in_a_nested_table_says_where():
    error = refusal(Model, {**MODEL, "encoder": {"haeds": 2}})
    assert (error.what, error.where) == ('there is no setting "haeds"', "settings.encoder")
    assert error.hint == 'did you mean "heads"?'


def test_a_key_like_no_other_lists_what_is_known():
    hint = refusal(Stack, {"zzz": 1}).hint
    assert all(field.name in hint for field in fields(Stack))


WRONG = [
    ("layers", "two"),
    ("layers", 2.0),
    ("layers", True),  # a bool is an int to Python
    ("layers", [2]),
    ("layers", None),
    ("window", [1, True]),
    ("window", "all"),
    ("window", 2.5),
]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_wrong_kind_in_a_stack_is_refused_where_it_stands(key, value):
    error = refusal(Model, {**MODEL, "decoder": {key: value}})
    assert error.where == f"settings.decoder.{key}"
    assert repr(value) in error.what


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("norm_bias", 1),
        ("norm_bias", "yes"),
        ("final_norm", 0),
        ("dropout", True),
        ("dropout", "0.1"),
        ("decoder", 6),
        ("decoder", [6]),
        ("encoder", "same"),
        ("norm", 1),
        ("norm", ["layer"]),
    ],
)
def test_a_wrong_kind_in_a_model_is_refused_where_it_stands(key, value):
    error = refusal(Model, {**MODEL, key: value})
    assert error.where == f"settings.{key}"
    assert repr(value) in error.what


def test_a_whole_number_may_stand_for_a_float():
    dropout = from_table(Model, {**MODEL, "dropout": 0}).dropout
    assert (dropout, type(dropout)) == (0.0, float)


@given(some.sampled_from(get_args(Positions)), some.data())
def test_a_word_out_of_the_list_names_the_nearest(word, data):
    cut = data.draw(some.integers(0, len(word) - 1))
    error = refusal(Model, {**MODEL, "positions": word[:cut] + word[cut + 1 :]})
    assert error.hint == f'did you mean "{word}"?'
    assert all(repr(known) in error.what for known in get_args(Positions))


def test_what_is_required_is_named():
    assert refusal(Model, {"width": 8}).what == "missing: vocabulary, decoder"


def test_a_settings_value_is_taken_as_it_is():
    assert from_table(Model, {**MODEL, "decoder": STACK}).decoder is STACK


def test_every_setting_of_a_stack_goes_through_a_table():
    stack = Stack(1, 6, 7, 3, 4, (5,))
    assert set(to_table(stack)) == set(asdict(stack))
