"""Rotary positions: the angles that a program turns pairs by, and prun's options that give the same angles.

Su et al. 2021, "RoFormer"; scaling as in Llama 3.1's model card and transformers' rope_scaling.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..builder import number_text

_CLOSE = 2e-6  # error of angles that are computed in f32, per token


@dataclass(frozen=True)
class Rotation:
    """Pairs (i, i + size/2), or (2i, 2i + 1) if interleaved, turned by base^(-2i/size) a token."""

    base: float
    interleaved: bool
    size: int

    def angles(self) -> Tensor:
        """Returns the angle of each pair from one token to the next, in radians."""
        return torch.tensor([self.base ** (-2 * i / self.size) for i in range(self.size // 2)], dtype=torch.float64)

    def apply(self, x: Tensor) -> Tensor:
        """Rotates [.., tokens, size]."""
        at = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * self.angles()
        cos, sin = at.cos(), at.sin()
        result = torch.empty_like(x)
        a, b = (slice(0, None, 2), slice(1, None, 2)) if self.interleaved else (
            slice(0, self.size // 2), slice(self.size // 2, None))
        result[..., a] = x[..., a] * cos - x[..., b] * sin
        result[..., b] = x[..., b] * cos + x[..., a] * sin
        return result

    def options(self) -> str:
        """Returns the options of nn.rotary after size and heads."""
        return "" if self.base == 10000 else f", base = {number_text(self.base)}"


def find_rotation(turned: Callable[[Tensor], Tensor], tokens: int, size: int) -> Rotation | None:
    """Returns the rotation that `turned` applies to [tokens, size]; None if it is of another kind."""
    if tokens < 2 or size % 2:
        return None
    half = size // 2
    for interleaved in (False, True):
        first = slice(0, None, 2) if interleaved else slice(0, half)
        second = slice(1, None, 2) if interleaved else slice(half, None)
        probe = torch.zeros(tokens, size, dtype=torch.float64)
        probe[:, first] = 1
        result = turned(probe)
        cos, sin = result[:, first], result[:, second]
        if (cos.square() + sin.square() - 1).abs().max() > 1e-4:
            continue
        angles = torch.atan2(sin[1], cos[1])
        base = _base(angles, size, cos)
        if base is not None:
            return Rotation(base, interleaved, size)
    return None


def _base(angles: Tensor, size: int, cos: Tensor) -> float | None:
    """Returns the base with the fewest digits that gives the angles at each token."""
    if size == 2:
        return 10000.0 if abs(float(angles[0]) - 1) < 1e-5 else None
    if bool((angles <= 0).any()):
        return None
    rough = math.exp(-math.log(float(angles[1])) * size / 2)
    at = torch.arange(cos.shape[0], dtype=torch.float64)[:, None]
    for digits in range(1, 8):
        base = float(f"{rough:.{digits - 1}e}")
        wanted = (at * Rotation(base, False, size).angles()).cos()
        if ((wanted - cos).abs() <= _CLOSE * (at + 1)).all():
            return base
    return None
