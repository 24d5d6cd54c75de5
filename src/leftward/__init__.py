"""Leftward trains, runs, proves and shows Transformer decoders. A decoder may only look left."""
