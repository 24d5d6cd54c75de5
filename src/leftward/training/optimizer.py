"""AdamW over a model's weights, and its state by name."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim import AdamW

from leftward.errors import CheckpointError
from leftward.model.transformer import Transformer
from leftward.settings import Training

_MOMENTS = ("exp_avg", "exp_avg_sq")


def make_optimizer(model: Transformer, training: Training) -> AdamW:
    """AdamW; weight decay spares what is no matrix: biases and norms.

    >>> from leftward.settings import Model, Stack
    >>> model = Transformer(Model(vocabulary=9, width=8, decoder=Stack(layers=1, heads=2, feed_forward=16)))
    >>> training = Training(
    ...     steps=9, batch_tokens=9, learning_rate=1e-3, warm_up=1, validate_every=9, save_every=9, weight_decay=0.1
    ... )
    >>> [group["weight_decay"] for group in make_optimizer(model, training).param_groups]
    [0.1, 0.0]
    """
    weights = list(model.parameters())
    matrices = [weight for weight in weights if weight.dim() > 1]
    others = [weight for weight in weights if weight.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": training.weight_decay}]
    if others:
        groups.append({"params": others, "weight_decay": 0.0})
    first, second = training.betas
    return AdamW(groups, lr=training.learning_rate, betas=(first, second), eps=training.epsilon, fused=True)


def clip(model: Transformer, largest: float) -> Tensor:
    """Scale all gradients down so that their norm is at most `largest`; returns the norm they had."""
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), largest, norm)
    return norm


def optimizer_state(model: Transformer, optimizer: AdamW) -> dict[str, Tensor]:
    """The optimizer's memory of every weight, by the weight's name; empty before the first step."""
    tensors = {}
    for name, weight in model.named_parameters():
        for moment in _MOMENTS if weight in optimizer.state else ():
            tensors[f"{moment}.{name}"] = optimizer.state[weight][moment]
    return tensors


def put_optimizer_state(
    model: Transformer, optimizer: AdamW, tensors: Mapping[str, Tensor], *, step: int, where: str
) -> None:
    """Give the optimizer back its memory after `step` steps."""
    if step == 0:
        return
    for name, weight in model.named_parameters():
        memory = {}
        for moment in _MOMENTS:
            stored = tensors.get(f"{moment}.{name}")
            if stored is None or stored.shape != weight.shape:
                raise CheckpointError(
                    f"the optimizer's {moment} of {name} is missing or of another shape",
                    where=where,
                    hint="take an intact copy of the folder",
                )
            memory[moment] = torch.empty_like(weight).copy_(stored)
        steps = torch.tensor(float(step), dtype=torch.float32, device=weight.device)
        optimizer.state[weight] = {"step": steps, **memory}
