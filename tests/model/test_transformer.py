"""Layers and models: what they are made of, what they refuse, and that they compute what torch's own layers compute."""

import math

import pytest
import torch
from tests.laws.models import CHOICES, a_model, build, describe, settings_of
from torch import nn
from torch.nn import functional

from leftward.auditing.specimens import draw_sample
from leftward.decoding.greedy import write
from leftward.errors import SettingsError
from leftward.model.attention import CrossAttention
from leftward.model.layers import ACTIVATIONS, FeedForward, Sublayer, in_training_precision, make_norm
from leftward.model.precision import computing_in
from leftward.model.transformer import Transformer
from leftward.packed import pack
from leftward.settings import Model, Stack
from leftward.training.objective import loss_of, shift

each_choice = pytest.mark.parametrize("choice", CHOICES, ids=describe)


@each_choice
def test_every_parameter_gets_a_gradient(choice):
    model = build(settings_of(choice))
    sample = draw_sample(model.settings, seed=1, rows=5)
    rows = [row for row in sample.rows if len(row) > 1]
    sources = None if sample.sources is None else sample.sources[: len(rows)]
    loss_of(model, shift(rows, sources)).total.backward()
    without = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert not without


@each_choice
def test_a_model_without_an_encoder_has_nothing_to_read_a_source_with(choice):
    model = build(settings_of(choice))
    crosses = [part for part in model.modules() if isinstance(part, CrossAttention)]
    names = [name for name, _ in model.named_parameters() if "across" in name or "source" in name or "encoder" in name]
    if model.settings.encoder is None:
        assert not crosses
        assert not names
        assert model.encoder is None
    else:
        assert len(crosses) == model.settings.decoder.layers
        assert names


@each_choice
def test_parts_that_were_not_asked_for_have_no_parameter(choice):
    settings = settings_of(choice)
    names = {name for name, _ in build(settings).named_parameters()}
    assert any(name.endswith("bias") for name in names) == choice["biases"]
    assert any("positions" in name for name in names) == (choice["positions"] == "learned")
    assert any("bias.scores" in name for name in names) == (choice["positions"] == "relative")
    assert ("decoder.final_norm.weight" in names) == (choice["norm_place"] == "before")


TIES = {
    "none": {"target", "source", "output"},
    "source-target": {"target", "output"},
    "target-output": {"target", "source"},
    "all": {"target"},
}


@pytest.mark.parametrize("tie", TIES)
def test_ties_share_one_tensor(tie):
    model = a_model(tie=tie)
    words = {
        "target": model.embedding.words.weight,
        "source": model.source_embedding.words.weight,
        "output": model.output.weight,
    }
    assert len({id(weight) for weight in words.values()}) == len(TIES[tie])
    assert (words["source"] is words["target"]) == (tie in ("source-target", "all"))
    assert (words["output"] is words["target"]) == (tie in ("target-output", "all"))
    counted = [weight for weight in model.parameters() if weight.shape == (30, 16)]
    assert len(counted) == len(TIES[tie])
    # A cast, and a move, keep them one.
    assert len({id(weight) for weight in model.float().parameters()}) == len(list(model.parameters()))


def test_a_decoder_only_model_ties_its_output():
    model = a_model(encoder=None, tie="all")
    assert model.output.weight is model.embedding.words.weight
    assert a_model(encoder=None, tie="none").output.weight is not model.embedding.words.weight


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "none"])
def test_a_row_longer_than_the_context_is_refused(positions):
    model = a_model(context=6, positions=positions, position_offset=2)
    short, long = pack([[1] * 6, [2]]), pack([[2], [1] * 7])
    model(short, short)
    for target, source in ((long, short), (short, long)):
        with pytest.raises(SettingsError, match="a row of 7 tokens is longer than the model's context of 6"):
            model(target, source)


def test_a_model_that_translates_wants_a_source():
    with pytest.raises(SettingsError, match="no source to read"):
        a_model()(pack([[1, 2]]))


def test_a_decoder_only_model_takes_no_source():
    model, batch = a_model(encoder=None), pack([[1, 2]])
    with pytest.raises(SettingsError, match="reads no source"):
        model.encode(batch)
    with pytest.raises(SettingsError):
        model(batch, batch)


def test_a_source_is_projected_once_for_each_layer(monkeypatch):
    calls = []
    project = CrossAttention.project

    def count(part, memory):
        calls.append((id(part), len(memory)))
        return project(part, memory)

    monkeypatch.setattr(CrossAttention, "project", count)
    model = a_model(decoder=Stack(layers=3, heads=2, feed_forward=24))
    write(model, start=1, length=10, source=pack([[1, 2, 3], [4, 5]]))
    assert sorted(calls) == sorted((id(layer.across), 5) for layer in model.decoder.layers)


def copy(ours, theirs):
    """The weights of one of our layers into torch's."""
    theirs.self_attn.in_proj_weight.copy_(ours.attention.input.weight)
    theirs.self_attn.in_proj_bias.copy_(ours.attention.input.bias)
    pairs = [
        (ours.attention.output, theirs.self_attn.out_proj),
        (ours.feed_forward.widen, theirs.linear1),
        (ours.feed_forward.narrow, theirs.linear2),
        (ours.around_attention.norm, theirs.norm1),
    ]
    if getattr(ours, "across", None) is None:
        pairs.append((ours.around_feed_forward.norm, theirs.norm2))
    else:
        across = ours.across
        theirs.multihead_attn.in_proj_weight.copy_(torch.cat([across.queries.weight, across.keys_values.weight]))
        theirs.multihead_attn.in_proj_bias.copy_(torch.cat([across.queries.bias, across.keys_values.bias]))
        pairs += [
            (across.output, theirs.multihead_attn.out_proj),
            (ours.around_across.norm, theirs.norm2),
            (ours.around_feed_forward.norm, theirs.norm3),
        ]
    for one, other in pairs:
        other.load_state_dict(one.state_dict())


@torch.no_grad()
def copy_stack(ours, kind, **shape):
    """One of our stacks as torch has it."""
    layers = nn.ModuleList(kind(16, 2, 24, batch_first=True, dropout=0.0, **shape) for _ in ours.layers)
    for one, other in zip(ours.layers, layers.double(), strict=True):
        for norm in (part for part in one.modules() if isinstance(part, nn.LayerNorm)):
            norm.weight.normal_()
        copy(one, other)
    return layers, (nn.Identity() if ours.final_norm is None else ours.final_norm)


@pytest.mark.parametrize("norm_place", ["before", "after"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_it_computes_what_torchs_own_layers_compute(norm_place, activation):
    model = a_model(norm_place=norm_place, activation=activation, tie="none", output_bias=True)
    shape = {"activation": activation, "norm_first": norm_place == "before"}
    encoder, last_norm = copy_stack(model.encoder, nn.TransformerEncoderLayer, **shape)
    decoder, final_norm = copy_stack(model.decoder, nn.TransformerDecoderLayer, **shape)

    def embed(embedding, ids):
        at = torch.arange(len(ids))[:, None]
        rate = 10_000.0 ** (-torch.arange(8) / 8)
        waves = torch.cat([(at * rate).sin(), (at * rate).cos()], dim=1)
        return (embedding.words(torch.tensor(ids)) * 4 + waves)[None]  # 4: the root of the width

    def by_torch(target, source):
        memory = embed(model.source_embedding, source)
        for layer in encoder:
            memory = layer(memory)
        memory, states = last_norm(memory), embed(model.embedding, target)
        mask = torch.ones(len(target), len(target)).triu(1).bool()
        for layer in decoder:
            states = layer(states, memory, tgt_mask=mask)
        return functional.linear(final_norm(states)[0], model.output.weight, model.output.bias)

    sample = draw_sample(model.settings, seed=2)
    expected = [
        by_torch(row.tolist(), source.tolist()) for row, source in zip(sample.rows, sample.sources, strict=True)
    ]
    found = model.scores(model(sample.target(), sample.source()))
    # Our table of sines is float32.
    torch.testing.assert_close(found, torch.cat(expected), rtol=0, atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_feed_forward_widens_bends_and_narrows(activation):
    torch.manual_seed(0)
    stack = Stack(heads=2, feed_forward=6)
    part = FeedForward(Model(vocabulary=9, width=4, activation=activation, decoder=stack), stack).double()
    states = torch.randn(5, 4, dtype=torch.float64)
    wide = states @ part.widen.weight.t() + part.widen.bias
    bent = {
        "relu": lambda x: x.clamp(min=0),
        "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
        "gelu_tanh": lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
        "gated_silu": lambda x: x * x.sigmoid(),
        "gated_gelu": lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    }[activation]
    if activation.startswith("gated"):
        assert wide.shape == (5, 12)
        inner = bent(wide[:, :6]) * wide[:, 6:]
    else:
        inner = bent(wide)
    expected = inner @ part.narrow.weight.t() + part.narrow.bias
    torch.testing.assert_close(part(states), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_norms(norm):
    settings = Model(vocabulary=9, width=8, norm=norm, norm_epsilon=0.5, decoder=Stack(heads=2))
    states = torch.randn(3, 8, dtype=torch.float64) + 2
    centred = states - states.mean(dim=1, keepdim=True) if norm == "layer" else states
    expected = centred / (centred.square().mean(dim=1, keepdim=True) + 0.5).sqrt()
    torch.testing.assert_close(make_norm(settings).double()(states), expected)


@pytest.mark.parametrize("place", ["before", "after"])
def test_the_residual_stands_where_the_norm_does_not(place):
    around = Sublayer(Model(vocabulary=9, width=8, norm_place=place, decoder=Stack(heads=2))).eval()
    states, inner = torch.randn(2, 3, 8)
    if place == "before":
        assert torch.equal(around.enter(states), around.norm(states))
        assert torch.equal(around.leave(states, inner), states + inner)
    else:
        assert around.enter(states) is states
        assert torch.equal(around.leave(states, inner), around.norm(states + inner))


def test_scales_stand_where_they_are_said():
    model = a_model(encoder=None, embedding_scale=3.0, logit_scale=0.25, output_bias=True, positions="none", tie="none")
    batch = pack([[5, 6]])
    torch.testing.assert_close(model.embedding(batch), 3 * model.embedding.words.weight[batch.ids])
    states = torch.randn(2, 16, dtype=torch.float64)
    expected = 0.25 * states @ model.output.weight.t() + model.output.bias
    torch.testing.assert_close(model.scores(states), expected)
    assert a_model(attention_scale=0.7).decoder.layers[0].across.scale == 0.7
    assert a_model().decoder.layers[0].attention.scale == 8**-0.5


def test_words_are_as_long_as_positions():
    torch.manual_seed(0)
    settings = Model(vocabulary=5_000, width=64, decoder=Stack(layers=1, heads=2), positions="none")
    embedded = Transformer(settings).embedding(pack([range(1_000)]))
    assert embedded.std().item() == pytest.approx(1, abs=0.02)


def test_the_norm_of_embeddings():
    model = a_model(encoder=None, embedding_norm=True)
    states = model.embedding(pack([[5, 6, 7]]))
    torch.testing.assert_close(states.mean(dim=1), model.embedding.norm.bias.mean().expand(3))


def test_the_precision_of_attention_is_autocasts():
    states = torch.zeros(1)
    assert in_training_precision(states) == torch.float32
    with computing_in("bfloat16"):
        assert in_training_precision(states) == torch.bfloat16


@each_choice
def test_every_mix_trains_in_bfloat16(choice):
    model = build(settings_of(choice), dtype=torch.float32)
    sample = draw_sample(model.settings, seed=3)
    rows = [row for row in sample.rows if len(row) > 1]
    lesson = shift(rows, None if sample.sources is None else sample.sources[: len(rows)])
    exact = loss_of(model, lesson).total
    with computing_in("bfloat16"):
        near = loss_of(model, lesson).total
        near.backward()
    assert near.dtype == torch.float32
    assert near.item() == pytest.approx(exact.item(), rel=0.05)
    assert all(weight.grad.isfinite().all() for weight in model.parameters())
