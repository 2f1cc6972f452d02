"""Bounds of a kernel on one core: the memory traffic of its operands, and its arithmetic. Measures nothing.

Work counts the vector instructions that a kernel's formula needs per element: the arithmetic of a good implementation,
not of ours, without loads, stores, loops and row tails. It is a lower bound: the rates, measured in the same run
(vector_rates.cc), are those of one kind of instruction alone, and the slowest kind counts. Sources of the counts:
runtime/kernels/cpu/vector_math.h for functions, each kernel's formula next to its line.
"""
import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Work:
    """Instructions per element; a vector of 16 elements takes as many."""
    multiply_add: float = 0  # a·b and a·b + c
    simple: float = 0        # a + b, comparisons, shifts, logic, conversions from bf16
    divide: float = 0
    root: float = 0
    word_product: float = 0  # 32 x 32 -> 64 bits: half a vector's lanes at a time
    round: float = 0         # to bf16

    def __add__(self, other):
        return Work(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other))))

    def times(self, n):
        return Work(*(n * a for a in dataclasses.astuple(self)))

    def seconds(self, rates):
        """Returns the time per element; `rates`: elements/s by kind. A kind without a rate is not counted."""
        def of(kind):
            return getattr(self, kind) / rates[kind] if kind in rates else 0
        kinds = [field.name for field in dataclasses.fields(self)]
        # A rounding takes several cycles of the units. It counts with the time that it adds to two simple instructions,
        # at most its own.
        beside = min(1 / rates["round"], max(0, 1 / rates["round_beside"] - 2 / rates["simple"])) if "round_beside" in rates else 0
        turns = beside * rates["simple"] or 1
        every = sum(getattr(self, kind) * (turns if kind == "round" else 1) for kind in kinds if kind in rates) / rates["simple"]
        return max(of("divide") + of("root"), every, *map(of, kinds))  # one unit executes divisions and roots


# 2^t: fraction of t, a polynomial of degree 5, exponent of the integer part, one bound of t. AVX-512 has one
# instruction each for the first and the third step, where other CPUs take three and two.
EXP2 = Work(multiply_add=5, simple=3)
RECIPROCAL = Work(simple=1, multiply_add=2)  # an estimate and a Newton step
SIGMOID = EXP2 + Work(simple=1) + RECIPROCAL  # 1/(1 + 2^t)
# Sufficient for a bf16 result: a polynomial of degree 4, and the estimate alone.
ROUGH_EXP2 = Work(multiply_add=4, simple=3)
SOFTMAX_TERM = Work(simple=1, multiply_add=1) + EXP2  # e^(x − top): a subtraction, and base 2
# e^(x − top) with x·log2 e − top as one FMA and without the bound, which follows from scaling.
LOSS_TERM = Work(multiply_add=1) + Work(multiply_add=5, simple=2)

# kernel: (work for all types, bf16 vectors widened, bf16 vectors rounded, kind of memory stream)
KERNELS = {
    # t = −x·(A + B·x²) in base 2: 3; y = x·sigmoid
    "gelu": (Work(3 + 1) + SIGMOID, 1, 1, "copy"),
    # t: 3; s, its sigmoid, from e = 2^t; q = x·(A + 3B·x²): 2; s·(1 + e·s·q), because 1 − s loses digits: 3; · dy
    "gelu_dx": (Work(3 + 2 + 3 + 1) + SIGMOID, 2, 1, "copy"),
    # programs of the op pointwise, their instructions besides the sigmoid
    "own_gelu": (Work(2) + SIGMOID, 1, 1, "copy"),
    "own_gelu_dx": (Work(8) + SIGMOID, 2, 1, "copy"),
    "tanh_of": (Work(3) + SIGMOID, 1, 1, "copy"),  # 2·sigmoid(2x) − 1
    "silu_mul": (Work(2) + SIGMOID, 2, 1, "copy"),  # gate·sigmoid·up
    # Σx; (x − c), Σ(x − c)²; x·r − c·r, · γ + β
    "layernorm": (Work(1 + 2, 2), 1, 1, "copy"),
    # x̂ = x·r − c·r; w = dy·γ; Σ w·x̂; dγ += dy·x̂; Σ w, dβ += dy; dx = w·r + (x·a + b), where a row has one a and b
    "layernorm_grad": (Work(4 + 2, 2), 2, 1, "copy"),
    # ten Philox rounds for four words: two 32 x 32 -> 64-bit multiplications each; the high half's shift and x ^ key ^
    # y in one; then the choice: comparison, permutation of words, multiplication
    "dropout": (Work(1, 2 * 10 + 2, word_product=10), 1, 1, "copy"),
    # a·c − b·s and b·c + a·s for two elements; the cosines and sines of all tokens are read too
    "rotary": (Work(2), 1, 1, "copy"),
    # g·clip; g − m, m + (1 − β1)·(g − m); g·g, (1 − β2)·g², v·β2 + that; √v·k + ε; m/that; p·decay − step·that
    "adamw_1m": (Work(1 + 1 + 3 + 1 + 2, 1, divide=1, root=1), 1, 1, "update"),
    # e^(x − top), Σ; no maximum, because most rows' sums are in range relative to any of their first elements
    "cross_entropy": (Work(simple=1) + LOSS_TERM, 1, 0, "read"),
    # scale·e^(x − lse)
    "cross_entropy_grad": (Work(1) + LOSS_TERM, 1, 1, "copy"),
    # e^(x − top) serves both the sum and, times a factor per row, the gradient
    "cross_entropy_and_grad": (Work(1, 1) + LOSS_TERM, 1, 1, "copy"),
}
# bf16, where less precision suffices. The derivative keeps Newton's step because its sum nearly cancels.
ROUGH = {"gelu": Work(3 + 1) + ROUGH_EXP2 + Work(simple=2), "gelu_dx": Work(3 + 2 + 3 + 1) + ROUGH_EXP2 + Work(simple=1) + RECIPROCAL}
KERNELS["adamw_7m"] = KERNELS["adamw_1m"]
KERNELS["adamw_cast_7m"] = KERNELS["adamw_1m"]
KERNELS["norm2_1m"] = (Work(multiply_add=2, simple=2), 0, 0, "read")  # squares in f64, half as many per vector
KERNELS["cast_7m"] = (Work(round=1), 0, 0, "copy")
ALWAYS_ROUNDED = {"adamw_cast_7m": Work(round=1)}
# One addition more than the norm, and one more operand; forward also writes the sum. Two separate ops do more work.
RESIDUAL = {False: (KERNELS["layernorm"][0] + Work(simple=1), 2, 2, "copy"), True: (KERNELS["layernorm_grad"][0] + Work(simple=1), 3, 1, "copy")}


def kernel_of(kernel, half, backward=False):
    """Returns (work per element, kind of memory stream)."""
    work, widened, rounded, stream = RESIDUAL[backward] if kernel == "residual_norm" else KERNELS[kernel]
    if half:
        work = ROUGH.get(kernel, work)
    work += ALWAYS_ROUNDED.get(kernel, Work())
    # Widened by even and odd lanes, an instruction each; one instruction per two vectors restores the order.
    return work + (Work(simple=widened + min(widened, rounded) / 2, round=rounded) if half else Work()), stream


def nearest(streams, size):
    """Returns the stream size nearest to a kernel's, so that both are in the same cache, or in none."""
    return min(streams, key=lambda other: abs(math.log(other / size)))


def of_elements(work, stream, elements, size, rates, streams):
    """Returns (seconds, bounding resource) of a kernel over elements whose operands have `size` bytes. streams: {name:
    {bytes: bytes/s}}
    """
    near = nearest(streams[stream], size)
    memory, arithmetic = size / streams[stream][near], elements * work.seconds(rates)
    if arithmetic > memory:
        return arithmetic, "arithmetic"
    return memory, f"{'an update in place' if stream == 'update' else 'a ' + stream} of {near >> 10:,} KiB"


# Work per unmasked score. Forward: scale and maximum, its e^x, Σ; the factor per query is negligible. Backward: P =
# e^(S − lse), dP − Σ out·dout, · P. In bf16 the GEMMs with P and dS keep full precision (decision 0180): on tiles each
# becomes hi + lo (truncate, subtract, round), which doubles the GEMMs; vectors multiply in f32.
# name: (GEMMs, those with P or dS, how many of P and dS, work per score)
ATTENTION = {"attention": (2, 1, 1, Work(simple=1 + 1) + SOFTMAX_TERM), "attention_grad": (5, 3, 2, Work(1, 1) + SOFTMAX_TERM)}
TWO_PARTS = Work(simple=2, round=1)


def of_attention(kernel, half, flops, head, rates, peaks, tiles):
    """Returns the seconds of attention whose GEMMs have `flops`, including the vector work on scores. Tiles are a
    separate unit that overlaps with vectors; without tiles, both use the FMA units one after the other.
    """
    products, exact, parts, work = ATTENTION[kernel]
    scores, one = flops / (2 * head * products), flops / products
    if half and tiles:
        return max((products + exact) * one / peaks[half], scores * (work + TWO_PARTS.times(parts)).seconds(rates))
    multiplied = (products - exact) * one / peaks[half] + exact * one / peaks[0]
    return scores * (work + Work(multiplied / scores * rates["multiply_add"])).seconds(rates)
