"""What the tests of model folders share."""

from tests.training.nursery import nursery, scratch

__all__ = ["nursery", "scratch"]
