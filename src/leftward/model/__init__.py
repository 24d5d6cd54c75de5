"""Tokens in, scores out: the rule of sight, positions, attention, cache, layers and the models made of them."""
