"""The laws, and a run of training and writing, on a GPU.

What is measured goes to the file named by LEFTWARD_GPU_RESULT, with the commit it was measured at.
"""

import json
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.laws.models import CHOICES, build, describe, settings_of

from leftward.auditing import laws
from leftward.auditing.specimens import draw_sample
from leftward.decoding.greedy import write
from leftward.model.precision import computing_in
from leftward.model.transformer import Transformer
from leftward.packed import pack
from leftward.settings import Model, Stack
from leftward.training.objective import loss_of, shift

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU"),
    pytest.mark.timeout(300),
]

RESULT = {}


@pytest.fixture(scope="module", autouse=True)
def result():
    yield
    path = os.environ.get("LEFTWARD_GPU_RESULT")
    if path:
        commit = os.environ.get("LEFTWARD_COMMIT") or subprocess.getoutput("git rev-parse HEAD")
        facts = {"commit": commit, "gpu": torch.cuda.get_device_name(), "torch": str(torch.__version__)}
        Path(path).write_text(json.dumps({**facts, **RESULT}, indent=1) + "\n")


@pytest.mark.parametrize("choice", CHOICES, ids=describe)
@pytest.mark.parametrize("law", laws.OF_A_MODEL, ids=lambda law: law.__name__)
def test_a_law_holds(law, choice):
    model = build(settings_of(choice)).cuda()
    finding = law(model, draw_sample(model.settings, seed=4, device="cuda"))
    assert finding.holds, finding
    RESULT["laws"] = RESULT.get("laws", 0) + 1


@pytest.mark.parametrize("choice", CHOICES, ids=describe)
def test_parallel_training_is_sequential_training(choice):
    model = build(settings_of(choice)).cuda().train()
    sample = draw_sample(model.settings, seed=5, rows=3, longest=7)
    rows = [row for row in sample.rows if len(row) > 1]
    sources = None if sample.sources is None else sample.sources[: len(rows)]
    finding = laws.parallel_equals_sequential(model, shift(rows, sources).to("cuda"), smoothing=0.1)
    assert finding.holds, finding


@pytest.mark.parametrize("choice", CHOICES, ids=describe)
def test_the_gpu_gives_what_the_processor_gives(choice):
    model = build(settings_of(choice))
    sample = draw_sample(model.settings, seed=9)
    with torch.no_grad():
        here = model.scores(model(sample.target(), sample.source()))
        there = model.cuda().scores(model(sample.target().to("cuda"), sample.source() and sample.source().to("cuda")))
    assert (here - there.cpu()).abs().max() < 1e-10


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_model_learns(precision):
    torch.manual_seed(0)
    stack = Stack(layers=6, heads=8, feed_forward=2048)
    model = Transformer(Model(vocabulary=10_000, width=512, encoder=stack, decoder=stack, dropout=0.1)).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(3.2, 0.5, 700).astype(int), 4, 100)
    rows = [random.integers(3, 10_000, length) for length in lengths]
    lesson = shift(rows, rows).to("cuda")
    losses, seconds = [], []
    for _ in range(30):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with computing_in(precision, "cuda"):
            loss = loss_of(model, lesson, smoothing=0.1)
            (loss.total / loss.count).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        losses.append(loss.plain.item() / loss.count)
    assert losses[-1] < losses[0] - 0.5
    RESULT[f"train_base_{precision}_target_tokens_a_second"] = round(lesson.count / float(np.median(seconds[5:])))
    RESULT[f"train_base_{precision}_losses"] = [losses[0], losses[-1]]


@pytest.mark.parametrize("slots", [1, 64])
def test_writing_is_the_same_as_on_the_processor(slots):
    stack = Stack(layers=2, heads=4, feed_forward=128)
    model = build(Model(vocabulary=50, width=64, encoder=stack, decoder=stack))
    random = np.random.default_rng(1)
    source = pack([random.integers(0, 50, random.integers(1, 20)) for _ in range(slots)])
    here = write(model, 1, 20, source=source)
    there = write(model.cuda(), 1, 20, source=source.to("cuda"))
    assert torch.equal(here, there.cpu())


@pytest.mark.parametrize("slots", [1, 64])
def test_the_time_of_a_step(slots):
    torch.manual_seed(0)
    stack = Stack(layers=6, heads=8, feed_forward=2048)
    model = Transformer(Model(vocabulary=10_000, width=512, encoder=stack, decoder=stack)).cuda().eval()
    random = np.random.default_rng(1)
    source = pack([random.integers(0, 10_000, random.integers(5, 30)) for _ in range(slots)]).to("cuda")
    write(model, 1, 64, source=source)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    write(model, 1, 64, source=source)
    torch.cuda.synchronize()
    RESULT[f"step_ms_base_{slots}_slots_eager"] = round(1e3 * (time.perf_counter() - begin) / 64, 2)
