"""transformers' Marian with random weights, of one of our sizes."""

from __future__ import annotations

from transformers import MarianConfig, MarianMTModel

from bench.pieces import END, PADDING, START, VOCABULARY
from bench.recipe import Size

LONGEST = 512


def build_marian(size: Size) -> MarianMTModel:
    """A model from a config alone: nothing is downloaded."""
    config = MarianConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=LONGEST,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        d_model=size.width,
        encoder_ffn_dim=size.feed_forward,
        decoder_ffn_dim=size.feed_forward,
        encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads,
        dropout=size.dropout,
        attention_dropout=size.dropout,
        activation_dropout=size.dropout,
        activation_function="relu",
        scale_embedding=True,
        init_std=size.width**-0.5,  # with its scaled embedding, the customary deviation of 1
        pad_token_id=PADDING,
        bos_token_id=START,
        decoder_start_token_id=START,
        eos_token_id=END,
        forced_eos_token_id=None,
    )
    return MarianMTModel(config)
