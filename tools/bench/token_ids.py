"""Token ids for the benchmarks of GPT-2: uniform, or by Zipf's law as in text.

Uniform ids hide the cost of frequent tokens: in English text one word in 25 is the same, and its row of the embedding
gradient sums thousands of rows.
"""
import array
import itertools
import random

REAL_VOCAB = 50257  # GPT-2's ids are below it; larger vocabularies are padded


def ids_of(kind, vocab, count, seed=0):
    """Returns `count` ids; `zipf`: rank r has a share of 1 / (r + 2.7) (Mandelbrot 1953), and ids are not sorted by
    frequency.
    """
    most, rng = min(vocab, REAL_VOCAB), random.Random(seed)
    if kind == "uniform":
        return array.array("H", (i % most for i in array.array("H", rng.randbytes(2 * count))))
    ids = list(range(most))
    rng.shuffle(ids)
    return array.array("H", rng.choices(ids, cum_weights=list(itertools.accumulate(1 / (r + 2.7) for r in range(most))), k=count))


def write(path, kind, vocab, count):
    with open(path, "wb") as file:
        ids_of(kind, vocab, count).tofile(file)
