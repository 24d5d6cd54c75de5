"""Scores in, words out, one after the other."""
