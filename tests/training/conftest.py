"""What the tests of training share."""

from tests.training.nursery import nursery, scratch

__all__ = ["nursery", "scratch"]
