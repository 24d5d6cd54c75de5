"""The one door to attention: queries look at keys and take a weighted mean of their values.

Behind the door stand two paths. `plain` is the textbook: scores, plus a matrix of 0 and -inf, softmax, times
the values; on a CPU it is also the fastest for rows of sentence length. `fused` is torch's own kernel, which
never keeps the weights. The door picks by device, precision and width, and can say which it picked.

N query tokens, M key tokens; in a rectangle b rows of Q queries and K keys; H heads share Hk key heads, G = H
/ Hk; D wide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from leftward.model import sight
from leftward.model.cache import Cache, CachedMeeting
from leftward.model.exact import is_exact
from leftward.model.heads import heads_of
from leftward.model.linear import Linear
from leftward.model.positions import Alibi, Relative, turn
from leftward.model.precision import computing_in
from leftward.model.rectangles import Meeting
from leftward.model.tap import Attended, Tap
from leftward.settings import Model, Stack

Path = Literal["plain", "fused"]

# On a CPU the fused kernel is the faster one only for rows this long, and only in float32
# (bench/attention_paths).
FUSED_FROM_KEYS = 256

_forced: ContextVar[Path | None] = ContextVar("path", default=None)


@contextmanager
def forced_path(path: Path) -> Iterator[None]:
    """Send all attention through one path, inside this block: for comparing the two."""
    token = _forced.set(path)
    try:
        yield
    finally:
        _forced.reset(token)


def choose_path(queries: Tensor, keys: Tensor) -> Path:
    """The path the door takes for queries (b, Hk, G, Q, D) and keys (b, Hk, K, D).

    >>> choose_path(torch.zeros(2, 1, 1, 17, 8), torch.zeros(2, 1, 17, 8))
    'plain'
    """
    forced = _forced.get()
    if forced is not None:
        return forced
    if is_exact():
        return "plain"  # the fused kernel divides its work by the number of rows
    if queries.device.type != "cpu":
        return "fused"
    is_full_float32 = queries.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    return "fused" if is_full_float32 and min(keys.shape[2], queries.shape[3]) >= FUSED_FROM_KEYS else "plain"


class _FullProduct(torch.autograd.Function):
    """A product of matrices (B, M, N) in full float32, and so are its gradients."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        with computing_in("float32"):
            return torch.bmm(left, right)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        left, right = ctx.saved_tensors
        with computing_in("float32"):
            return torch.bmm(gradient, right.transpose(1, 2)), torch.bmm(left.transpose(1, 2), gradient)


def plain(
    queries: Tensor, keys: Tensor, values: Tensor, matrix: Tensor, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Softmax of the scores, times the values: (b, Hk, G, Q, D), and the weights (b, Hk, G, Q, K).

    The products are many and small. The kernels that "medium" picks on a processor are the faster ones for large
    matrices, and up to five times slower for these; so here it is not followed.

    >>> one, sees_first = torch.ones(1, 1, 1, 1, 2), torch.tensor([[0.0, -torch.inf]])
    >>> plain(one, torch.ones(1, 1, 2, 2), torch.eye(2)[None, None], sees_first, None, 1.0)[0].flatten().tolist()
    [1.0, 0.0]
    """
    precision = torch.get_float32_matmul_precision()
    if precision == "highest" or not _is_plain_float32(queries):
        return _weigh(queries, keys, values, matrix, bias, scale, torch.bmm)
    if torch.is_grad_enabled():
        return _weigh(queries, keys, values, matrix, bias, scale, _FullProduct.apply)
    torch.set_float32_matmul_precision("highest")
    try:
        return _weigh(queries, keys, values, matrix, bias, scale, torch.bmm)
    finally:
        torch.set_float32_matmul_precision(precision)


def _is_plain_float32(states: Tensor) -> bool:
    return states.dtype == torch.float32 and states.device.type == "cpu" and not torch.is_autocast_enabled("cpu")


def _weigh(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    matrix: Tensor,
    bias: Tensor | None,
    scale: float,
    multiply: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    b, key_heads, group, count, size = queries.shape
    # Rows and key heads become one axis: products of three axes need no views of their own making.
    asked = (queries * scale).reshape(b * key_heads, group * count, size)
    scores = multiply(asked, keys.flatten(0, 1).transpose(1, 2)).view(b, key_heads, group, count, -1)
    weights = scores.add_(matrix if bias is None else bias + matrix).softmax(dim=-1)
    mixed = multiply(weights.view(b * key_heads, group * count, -1), values.flatten(0, 1))
    return mixed.view(b, key_heads, group, count, -1), weights


def fused(
    queries: Tensor, keys: Tensor, values: Tensor, matrix: Tensor | None, bias: Tensor | None, scale: float
) -> Tensor:
    """The same by torch's own kernel; no matrix means the kernel's own triangle."""
    b, key_heads, group, count, size = queries.shape
    mask = None
    if matrix is not None:
        mask = (matrix if bias is None else bias + matrix).expand(b, key_heads, group, -1, -1).flatten(1, 2)
    mixed = functional.scaled_dot_product_attention(
        queries.reshape(b, key_heads * group, count, size),
        keys,
        values,
        attn_mask=mask,
        is_causal=matrix is None,
        scale=scale,
        enable_gqa=group > 1,
    )
    return mixed.view(b, key_heads, group, count, -1)


class _Attention(nn.Module):
    """What self- and cross-attention share: the heads, the door itself and the output projection."""

    def __init__(self, settings: Model, stack: Stack, rule: sight.Rule) -> None:
        super().__init__()
        self.heads = heads_of(settings, stack)
        self.rule: sight.Rule = rule
        self.scale = settings.attention_scale or self.heads.size**-0.5
        self.tap = Tap()
        self.output = Linear(self.heads.query * self.heads.size, settings.width, bias=settings.attention_bias)

    def _attend(
        self,
        queries: list[Tensor],
        keys: list[Tensor],
        values: list[Tensor],
        meeting: Meeting | CachedMeeting,
        bias: list[Tensor] | None,
    ) -> Tensor:
        """Through the door, rectangle by rectangle; returns (N, width)."""
        mixed = []
        for number in range(len(queries)):
            query, key, value = queries[number], keys[number], values[number]
            own_bias = None if bias is None else bias[number].unflatten(1, (self.heads.key, -1))
            path = choose_path(query, key)
            weights = None
            if path == "plain":
                matrix = meeting.matrices(self.rule, query.dtype)[number]
                output, weights = plain(query, key, value, matrix, own_bias, self.scale)
            else:
                triangle = own_bias is None and sight.is_kernel_triangle(self.rule, same_places=meeting.same_places)
                mask = None if triangle else meeting.matrices(self.rule, query.dtype)[number]
                output = fused(query, key, value, mask, own_bias, self.scale)
            if self.tap.listeners:
                matrix = meeting.matrices(self.rule, query.dtype)[number]
                places = meeting.places[number]
                self.tap.tell(Attended(path, places, query, key, value, matrix, own_bias, self.scale, output, weights))
            mixed.append(output)
        return self.output(meeting.collect(mixed, self.heads))


class SelfAttention(_Attention):
    """Tokens of a row look at each other; which ones they may see belongs to the layer, not to the call."""

    def __init__(self, settings: Model, stack: Stack, rule: sight.Rule) -> None:
        super().__init__(settings, stack, rule)
        every = self.heads.query + 2 * self.heads.key
        # One product makes queries, keys and values, in this order.
        self.input = Linear(settings.width, every * self.heads.size, bias=settings.attention_bias)

    def forward(
        self,
        states: Tensor,
        meeting: Meeting | CachedMeeting,
        angles: tuple[Tensor, Tensor] | None = None,
        bias: list[Tensor] | None = None,
        cache: Cache | None = None,
        layer: int = 0,
    ) -> Tensor:
        """States (N, width) to states (N, width)."""
        heads = self.heads
        table = self.input(states).view(states.shape[0], -1, heads.size)
        if angles is not None:
            turning = heads.query + heads.key
            table = torch.cat([turn(table[:, :turning], angles), table[:, turning:]], dim=1)
        if cache is None or isinstance(meeting, Meeting):
            queries, keys, values = meeting.spread_own(table, heads)  # type: ignore[union-attr]
        else:
            store = cache.append(layer, table[:, heads.query :].view(-1, 2, heads.key, heads.size), meeting)
            queries = meeting.spread_queries(table[:, : heads.query], heads)
            keys, values = meeting.hold(store)
        return self._attend(queries, keys, values, meeting, bias)


class CrossAttention(_Attention):
    """Tokens being written look at the source: keys and values come from the last encoder layer."""

    def __init__(self, settings: Model, stack: Stack) -> None:
        super().__init__(settings, stack, sight.SameSource())
        self.queries = Linear(settings.width, self.heads.query * self.heads.size, bias=settings.attention_bias)
        self.keys_values = Linear(settings.width, 2 * self.heads.key * self.heads.size, bias=settings.attention_bias)

    def project(self, memory: Tensor) -> Tensor:
        """Keys and values (M, 2, Hk, D) of the encoder's states (M, width)."""
        return self.keys_values(memory).view(len(memory), 2, self.heads.key, self.heads.size)

    def forward(
        self,
        states: Tensor,
        meeting: Meeting | CachedMeeting,
        memory: Tensor | None = None,
        cache: Cache | None = None,
        layer: int = 0,
    ) -> Tensor:
        """States (N, width) to states (N, width); the source is `memory` (M, width), or stands in the cache."""
        queries = self.queries(states).view(-1, self.heads.query, self.heads.size)
        if isinstance(meeting, Meeting):
            keys, values = meeting.spread_keys(self.project(memory).flatten(1, 2), self.heads)  # type: ignore[arg-type]
        else:
            keys, values = meeting.hold(cache.across[layer])  # type: ignore[union-attr]
        return self._attend(meeting.spread_queries(queries, self.heads), keys, values, meeting, None)


def biases_of(
    positions: Relative | Alibi | None, meeting: Meeting | CachedMeeting, dtype: torch.dtype
) -> list[Tensor] | None:
    """What positions add to the scores, (b, H, Q, K) for each rectangle; None where they add nothing."""
    if positions is None:
        return None
    return [positions(query, key).to(dtype) for query, key in meeting.places]
