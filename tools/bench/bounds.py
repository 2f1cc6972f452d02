"""What bounds a kernel of one core: the way of its operands from memory, and its arithmetic. Measures nothing.

Work counts the vector instructions that a kernel's formula needs for one element: what the arithmetic of a good
implementation takes, not what ours happens to do, with nothing for loads, stores, loops and the ends of rows. It is a
lower bound: the rates of the kinds, measured in the same run (vector_rates.cc), are those of instructions of one kind
alone, and the slowest kind counts. Sources of the counts: runtime/kernels/cpu/vector_math.h for functions, each kernel's
formula beside its line.
"""
import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Work:
    """Instructions an element; a vector of 16 takes as many as one element."""
    multiply_add: float = 0  # a·b and a·b + c
    simple: float = 0        # a + b, comparisons, shifts, logic, conversions from bf16
    divide: float = 0
    root: float = 0
    word_product: float = 0  # of 32-bit words as 64 bits: half a vector's lanes at a time
    round: float = 0         # to bf16

    def __add__(self, other):
        return Work(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other))))

    def times(self, n):
        return Work(*(n * a for a in dataclasses.astuple(self)))

    def seconds(self, rates):
        """Of one element; `rates`: elements a second by kind. A kind without a rate is not counted."""
        def of(kind):
            return getattr(self, kind) / rates[kind] if kind in rates else 0
        kinds = [field.name for field in dataclasses.fields(self)]
        # A rounding takes more turns of the units than one: what it adds to two simple instructions beside it, at most what it takes alone.
        beside = min(1 / rates["round"], max(0, 1 / rates["round_beside"] - 2 / rates["simple"])) if "round_beside" in rates else 0
        turns = beside * rates["simple"] or 1
        every = sum(getattr(self, kind) * (turns if kind == "round" else 1) for kind in kinds if kind in rates) / rates["simple"]
        return max(of("divide") + of("root"), every, *map(of, kinds))  # one unit divides and takes roots


# 2^t: what t is beyond a whole number, a polynomial of degree 5, the number's exponent, one limit of t. AVX-512 has an
# instruction for the first and the third each, others take three and two.
EXP2 = Work(multiply_add=5, simple=3)
RECIPROCAL = Work(simple=1, multiply_add=2)  # an estimate, Newton's step
SIGMOID = EXP2 + Work(simple=1) + RECIPROCAL  # 1/(1 + 2^t)
# What a result of bf16 shows of it: a polynomial of degree 4, and the estimate alone.
ROUGH_EXP2 = Work(multiply_add=4, simple=3)
SOFTMAX_TERM = Work(simple=1, multiply_add=1) + EXP2  # e^(x − top): less, in powers of two
# The same with x·log2 e − top in one, without a limit: what has one takes it from scaling.
LOSS_TERM = Work(multiply_add=1) + Work(multiply_add=5, simple=2)

# kernel: (of all types, how often a vector of bf16 is widened, how often it is rounded, memory's stream)
KERNELS = {
    # t = −x·(A + B·x²) in powers of two: 3; y = x·sigmoid
    "gelu": (Work(3 + 1) + SIGMOID, 1, 1, "copy"),
    # t: 3; s, its sigmoid, of e = 2^t; q = x·(A + 3B·x²): 2; s·(1 + e·s·q), as 1 − s loses digits: 3; · dy
    "gelu_dx": (Work(3 + 2 + 3 + 1) + SIGMOID, 2, 1, "copy"),
    # Σx; (x − c), Σ(x − c)²; x·r − c·r, · γ + β
    "layernorm": (Work(1 + 2, 2), 1, 1, "copy"),
    # x̂ = x·r − c·r; w = dy·γ; Σ w·x̂; dγ += dy·x̂; Σ w, dβ += dy; dx = w·r + (x·a + b) with a row's a and b
    "layernorm_grad": (Work(4 + 2, 2), 2, 1, "copy"),
    # ten rounds for four words: two products of words; the high half's shift and x ^ key ^ y in one; then the choice:
    # comparison, moving words into their order, product
    "dropout": (Work(1, 2 * 10 + 2, word_product=10), 1, 1, "copy"),
    # a·c − b·s and b·c + a·s for two elements; the cosines and sines of all tokens are read, too
    "rotary": (Work(2), 1, 1, "copy"),
    # g·clip; g − m, m + (1 − β1)·(g − m); g·g, (1 − β2)·g², v·β2 + that; √v·k + ε; m/that; p·decay − step·that
    "adamw_1m": (Work(1 + 1 + 3 + 1 + 2, 1, divide=1, root=1), 1, 1, "update"),
    # e^(x − top), Σ; no maximum, as most rows' sums have room beside any of their first elements
    "cross_entropy": (Work(simple=1) + LOSS_TERM, 1, 0, "read"),
    # scale·e^(x − lse)
    "cross_entropy_grad": (Work(1) + LOSS_TERM, 1, 1, "copy"),
    # the same e^(x − top) serves the sum and, times a row's factor, the gradient
    "cross_entropy_and_grad": (Work(1, 1) + LOSS_TERM, 1, 1, "copy"),
}
# Of bf16, where what a result shows of it takes less. The derivative keeps Newton's step, as its sum nearly cancels.
ROUGH = {"gelu": Work(3 + 1) + ROUGH_EXP2 + Work(simple=2), "gelu_dx": Work(3 + 2 + 3 + 1) + ROUGH_EXP2 + Work(simple=1) + RECIPROCAL}
KERNELS["adamw_7m"] = KERNELS["adamw_1m"]
KERNELS["adamw_cast_7m"] = KERNELS["adamw_1m"]
KERNELS["norm2_1m"] = (Work(multiply_add=2, simple=2), 0, 0, "read")  # squares in f64, of which a vector has half as many
KERNELS["cast_7m"] = (Work(round=1), 0, 0, "copy")
ALWAYS_ROUNDED = {"adamw_cast_7m": Work(round=1)}
# One addition more than the norm, and a tensor more to read; forward the sum is written, too. As two ops it is more work.
RESIDUAL = {False: (KERNELS["layernorm"][0] + Work(simple=1), 2, 2, "copy"), True: (KERNELS["layernorm_grad"][0] + Work(simple=1), 3, 1, "copy")}


def kernel_of(kernel, half, backward=False):
    """(work of an element, memory's stream)"""
    work, widened, rounded, stream = RESIDUAL[backward] if kernel == "residual_norm" else KERNELS[kernel]
    if half:
        work = ROUGH.get(kernel, work)
    work += ALWAYS_ROUNDED.get(kernel, Work())
    # Widened by even and odd places, an instruction each, numbers come back into their order by one for two vectors.
    return work + (Work(simple=widened + min(widened, rounded) / 2, round=rounded) if half else Work()), stream


def nearest(streams, size):
    """The size of a stream that is nearest to a kernel's: both are in the same cache, or in none."""
    return min(streams, key=lambda other: abs(math.log(other / size)))


def of_elements(work, stream, elements, size, rates, streams):
    """(seconds, what it is) of a kernel over elements whose operands have `size` bytes. streams: {name: {bytes: bytes/s}}"""
    near = nearest(streams[stream], size)
    memory, arithmetic = size / streams[stream][near], elements * work.seconds(rates)
    if arithmetic > memory:
        return arithmetic, "arithmetic"
    return memory, f"{'an update in place' if stream == 'update' else 'a ' + stream} of {near >> 10:,} KiB"


# Of a score that is not masked. Forward: scale and the maximum, its e^x, Σ, a query's factor counts little. Backward:
# P = e^(S − lse), dP − Σ out·dout, · P. In bf16 the products with P and dS stay as exact as they (decision 0180): on
# tiles each becomes two numbers, cut off, subtracted, rounded, which makes the products twice; vectors multiply in f32.
# (products, those with P or dS, how many of these two matrices there are, work of a score)
ATTENTION = {"attention": (2, 1, 1, Work(simple=1 + 1) + SOFTMAX_TERM), "attention_grad": (5, 3, 2, Work(1, 1) + SOFTMAX_TERM)}
TWO_PARTS = Work(simple=2, round=1)


def of_attention(kernel, half, flops, head, rates, peaks, tiles):
    """Seconds of attention whose products are `flops`: of them, and of the vectors' work on scores. Tiles have a unit of
    their own, which multiplies while vectors compute; otherwise both take multiply-adds, one after the other."""
    products, exact, parts, work = ATTENTION[kernel]
    scores, one = flops / (2 * head * products), flops / products
    if half and tiles:
        return max((products + exact) * one / peaks[half], scores * (work + TWO_PARTS.times(parts)).seconds(rates))
    multiplied = (products - exact) * one / peaks[half] + exact * one / peaks[0]
    return scores * (work + Work(multiplied / scores * rates["multiply_add"])).seconds(rates)
