"""What the tests of the command line share."""

from tests.training.nursery import nursery, scratch

__all__ = ["nursery", "scratch"]
