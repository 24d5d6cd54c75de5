"""Measurements of speed and memory, of Leftward and of its peers, in one run on one machine."""
