"""Rotary positions: the angles that a program turns pairs by, and prun's options that give the same angles.

Su et al. 2021, "RoFormer"; scaling as in Llama 3.1's model card and transformers' rope_scaling. The options are read
off the angles, so the module's configuration is not needed. Several options may give the same angles; the shortest
numbers are chosen.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..builder import number_text

_CLOSE = 2e-6  # error of cosines that are computed in f32, per token
_RELATIVE = (3e-7, 1e-5)  # error of angles: what f32 has, and what programs may add to it


@dataclass(frozen=True)
class Rotation:
    """Pairs (i, i + size/2), or (2i, 2i + 1) if interleaved, turned by base^(-2i/size) a token, scaled.

    `size` counts the elements that are turned, which are the first of a head.
    """

    base: float
    interleaved: bool
    size: int
    scaling: str = "none"  # or "linear", "llama3", "longrope"
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0
    original: int = 8192
    factors: tuple[float, ...] = ()  # "longrope": of each pair
    gain: float = 1.0  # multiplies the elements that are turned

    def angles(self) -> Tensor:
        """Returns the angle of each pair from one token to the next, in radians."""
        pairs = torch.arange(self.size // 2, dtype=torch.float64)
        plain = torch.tensor(self.base, dtype=torch.float64) ** (-2 * pairs / self.size)
        if self.scaling == "linear":
            return plain / self.factor
        if self.scaling == "longrope":
            return plain / torch.tensor(self.factors, dtype=torch.float64)
        if self.scaling == "llama3":
            kept = ((self.original * plain / (2 * math.pi) - self.low) / (self.high - self.low)).clamp(0, 1)
            return (1 - kept) * plain / self.factor + kept * plain
        return plain

    def apply(self, x: Tensor) -> Tensor:
        """Rotates the first elements of [.., tokens, elements of a head]."""
        at = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * self.angles()
        cos, sin = at.cos(), at.sin()
        result = x.clone()
        a, b = _halves(self.size, self.interleaved)
        result[..., a] = (x[..., a] * cos - x[..., b] * sin) * self.gain
        result[..., b] = (x[..., b] * cos + x[..., a] * sin) * self.gain
        return result

    def in_halves(self, columns: Tensor) -> Tensor:
        """Returns [heads, elements of a head] in the order in which the pairs are prun's."""
        if not self.interleaved:
            return columns
        first, second = _halves(self.size, True)
        return torch.cat([columns[:, first], columns[:, second], columns[:, self.size:]], -1)

    def options(self, size: int) -> str:
        """Returns the options of nn.rotary after size and heads, for heads of `size` elements."""
        given = [] if self.size == size else [f"part = {self.size}"]
        given += [] if self.base == 10000 else [f"base = {number_text(self.base)}"]
        if self.scaling != "none":
            given += [f'scaling = "{self.scaling}"', f"factor = {number_text(self.factor)}"]
        if self.scaling == "longrope":
            given[-1] = f"factors = {{{{ {', '.join(map(number_text, self.factors))} }}}}"
        if self.scaling == "llama3":
            given += [f"low_freq_factor = {number_text(self.low)}", f"high_freq_factor = {number_text(self.high)}",
                      f"original_context = {self.original}"]
        if self.gain != 1:
            given.append(f"attention_factor = {number_text(self.gain)}")
        return "".join(f", {one}" for one in given)


def _halves(size: int, interleaved: bool) -> tuple[slice, slice]:
    """Returns the first and the second elements of the pairs."""
    if interleaved:
        return slice(0, size, 2), slice(1, size, 2)
    return slice(0, size // 2), slice(size // 2, size)


def _changed(turned: Callable[[Tensor], Tensor], tokens: int, size: int) -> Tensor:
    """Returns which elements of [tokens, size] `turned` changes."""
    x = torch.randn(tokens, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return ((turned(x) - x).abs() > 1e-12).any(0)


def find_rotation(turned: Callable[[Tensor], Tensor], tokens: int, whole: int, gain: float = 1.0) -> Rotation | None:
    """Returns the rotation that `turned` applies to [tokens, whole]; None if it is of another kind.

    `gain`: the factor of the elements that are turned.
    """
    changed = _changed(turned, tokens, whole)
    size = int(changed.sum())
    if tokens < 2 or size % 2 or size == 0 or not changed[:size].all():
        return None
    for interleaved in (False, True):
        first, second = _halves(size, interleaved)
        probe = torch.zeros(tokens, whole, dtype=torch.float64)
        probe[:, first] = 1
        result = turned(probe) / gain
        cos, sin = result[:, first], result[:, second]
        if (cos.square() + sin.square() - 1).abs().max() > 1e-4:
            continue
        angles = torch.atan2(sin[1], cos[1])
        if bool((angles <= 0).any()):
            continue
        at = torch.arange(tokens, dtype=torch.float64)[:, None]
        for relative in _RELATIVE:
            for one in _candidates(angles, size, interleaved):
                wanted = one.angles()
                if ((wanted / angles - 1).abs() <= relative).all() and (
                        ((at * wanted).cos() - cos).abs() <= _CLOSE * (at + 1)).all():
                    return replace(one, gain=gain)
        one = _by_factors(angles, cos, sin, size, interleaved)
        if (((at * one.angles()).cos() - cos).abs() <= _CLOSE * (at + 1)).all():
            return replace(one, gain=gain)
    return None


def _by_factors(angles: Tensor, cos: Tensor, sin: Tensor, size: int, interleaved: bool) -> Rotation:
    """Returns a rotation with a factor for each pair (YaRN, LongRoPE), from the angles up to the last token."""
    token = 1
    while token < len(cos):  # each time the angle is known precisely enough to count whole turns of twice as many tokens
        measured = torch.atan2(sin[token], cos[token])
        turns = ((angles * token - measured) / (2 * math.pi)).round()
        angles = (measured + 2 * math.pi * turns) / token
        token = token * 2 if token * 2 < len(cos) or token == len(cos) - 1 else len(cos) - 1
    plain = Rotation(1e4, interleaved, size).angles()
    factors = tuple(float(f"{float(one):.13g}") for one in plain / angles)
    return Rotation(1e4, interleaved, size, "longrope", 1.0, factors=factors)


def _short(value: float, most: int = 12) -> Iterator[float]:
    """Returns the value rounded to few digits, then to more."""
    for digits in range(most):
        yield float(f"{value:.{digits}e}")


def _bases(ratio: float, size: int) -> list[float]:
    """Returns bases by which the angle of a pair is `ratio` times that of the pair before."""
    if not 0 < ratio < 1 or ratio ** (-size / 2) > 1e30:
        return []
    return [base for base in _short(ratio ** (-size / 2)) if abs(base ** (-2 / size) / ratio - 1) <= _RELATIVE[1]]


def _candidates(angles: Tensor, size: int, interleaved: bool) -> Iterator[Rotation]:
    """Returns rotations that may have these angles, the simplest first."""
    bases = _bases(float(angles[1] / angles[0]), size) if size > 2 else [1e4]
    for base in bases:
        yield Rotation(base, interleaved, size)
    for factor in _short(1 / float(angles[0])):
        for base in bases:
            yield Rotation(base, interleaved, size, "linear", factor)
    # In a short original context the second pair is scaled, and the last two are both scaled by the whole factor.
    for base in bases[:4] + (_bases(float(angles[-1] / angles[-2]), size)[:4] if size > 4 else []):
        yield from _llama3(angles, Rotation(base, interleaved, size, "llama3"))


def _llama3(angles: Tensor, plain: Rotation) -> Iterator[Rotation]:
    """Returns llama3 scalings with the base of `plain`; the last pair is scaled by the whole factor."""
    speeds = Rotation(plain.base, False, plain.size).angles()
    rough = float(speeds[-1] / angles[-1])
    for factor in _short(rough):
        if abs(factor / rough - 1) > _RELATIVE[1] or factor == 1:
            continue
        kept = (angles / speeds - 1 / factor) / (1 - 1 / factor)
        turns = speeds / (2 * math.pi)  # in one token of the original context
        between = [i for i in range(len(kept)) if 1e-4 < kept[i] < 1 - 1e-4]
        for low, high in _bounds(kept, turns, between):
            if between:
                context = float((low + kept[between[0]] * (high - low)) / turns[between[0]])
            else:
                least = max([high / float(turns[i]) for i in range(len(kept)) if kept[i] > 0.5], default=1.0)
                context = 2.0 ** math.ceil(math.log2(max(least, 1.0)))
            yield Rotation(plain.base, plain.interleaved, plain.size, "llama3", factor, low, high, round(context))


def _bounds(kept: Tensor, turns: Tensor, between: list[int]) -> Iterator[tuple[float, float]]:
    """Returns low_freq_factor and high_freq_factor; only their ratio matters, so that low is 1."""
    yield 1.0, 4.0
    if len(between) > 1:
        i, j = between[0], between[-1]
        slope = float((kept[i] - kept[j]) / (turns[i] - turns[j]))
        offset = float(kept[i]) - slope * float(turns[i])
        if offset < 0:
            for high in _short(1 - 1 / offset, 4):
                yield 1.0, high
