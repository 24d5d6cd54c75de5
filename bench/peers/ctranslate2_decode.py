"""Greedy decoding or beam search by CTranslate2, float32, one worker of two threads, the peer's Marian converted."""

from __future__ import annotations

import tempfile

import ctranslate2
import numpy as np
from ctranslate2.converters.transformers import BartLoader

from bench.peers.marian import build_marian
from bench.pieces import END, START, VOCABULARY, Batch
from bench.recipe import LENGTH, THREADS
from bench.task import decode, read_task


def main() -> None:
    """Measure it."""
    task = read_task(__doc__ or "", precisions=("float32",))
    model = build_marian(task.size).eval()
    parameters = sum(weight.numel() for weight in model.parameters())
    model.config.normalize_before = model.config.normalize_embedding = False
    names = [f"<{number}>" for number in range(VOCABULARY)]
    # Marian's own loader takes the last word for padding; here padding is the first.
    spec = BartLoader().get_model_spec(model)
    spec.register_source_vocabulary(names)
    spec.register_target_vocabulary(names)
    spec.config.bos_token = spec.config.decoder_start_token = names[START]
    spec.config.eos_token, spec.config.unk_token = names[END], names[0]
    spec.config.add_source_eos = False
    spec.validate()
    spec.optimize(quantization=None)
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        translator = ctranslate2.Translator(
            folder, device="cpu", compute_type="float32", intra_threads=THREADS, inter_threads=1
        )
    numbers = {name: number for number, name in enumerate(names)}

    def step(batch: Batch) -> np.ndarray:
        written = translator.translate_batch(
            [[names[piece] for piece in (*row, END)] for row in batch.sources],
            beam_size=task.beam,
            max_batch_size=len(batch.sources),
            min_decoding_length=LENGTH,
            max_decoding_length=LENGTH,
        )
        return np.array([[numbers[name] for name in each.hypotheses[0]] for each in written])

    decode(task, step, parameters=parameters)


if __name__ == "__main__":
    main()
