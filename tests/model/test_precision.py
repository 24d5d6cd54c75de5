"""The arithmetic of a block, and the user's own choice given back."""

import pytest
import torch

from leftward.model.precision import computing_in

CHOICES = ["highest", "high", "medium"]


@pytest.fixture(params=CHOICES)
def chosen(request):
    """What the user had set before."""
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    ("precision", "inside", "autocast"),
    [("float32", "highest", False), ("medium", "medium", False), ("bfloat16", "medium", True)],
)
def test_it_holds_inside_and_only_there(chosen, precision, inside, autocast):
    with computing_in(precision):
        assert torch.get_float32_matmul_precision() == inside
        assert torch.is_autocast_enabled("cpu") == autocast
        product = torch.ones(2, 2) @ torch.ones(2, 2)
        assert product.dtype == (torch.bfloat16 if autocast else torch.float32)
    assert torch.get_float32_matmul_precision() == chosen
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("precision", ["float32", "medium", "bfloat16"])
def test_it_is_given_back_when_the_block_fails(chosen, precision):
    with pytest.raises(KeyError), computing_in(precision):
        raise KeyError
    assert torch.get_float32_matmul_precision() == chosen
    assert not torch.is_autocast_enabled("cpu")


def test_an_inner_block_overrules_and_gives_back():
    with computing_in("bfloat16"):
        with computing_in("float32"):
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.is_autocast_enabled("cpu")
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.is_autocast_enabled("cpu")
