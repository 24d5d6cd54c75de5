"""Scores in, better weights out."""
