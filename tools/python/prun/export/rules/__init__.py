"""The exporter's rules in the order in which they are tried. Each is a function of a builder and a node; it returns the
plan's op, or None if the node is something else. A new function of the DSL is one rule in one of these files.
"""
from __future__ import annotations

from collections.abc import Callable

from torch.fx import Node

from ..builder import Builder
from ..ops import Op
from . import (
    activations,
    arithmetic,
    attention,
    bias,
    channel_norms,
    contrastive,
    convolutions,
    data,
    embeddings,
    experts,
    functions,
    layers,
    norms,
    patches,
    shuffles,
    views,
)

Rule = Callable[[Builder, Node], Op | None]

RULES: list[Rule] = [
    bias.by_distance,
    embeddings.tokens_and_positions,
    embeddings.tokens,
    norms.norm,
    channel_norms.group_norm,
    channel_norms.instance_norm,
    channel_norms.batch_norm,
    attention.attention,
    layers.linear,
    experts.mixture,
    activations.gated,
    activations.unary,
    layers.dropout,
    layers.drop_path,
    *shuffles.RULES,
    arithmetic.scale,
    arithmetic.add,
    arithmetic.multiply,
    arithmetic.square,
    patches.patches,
    *convolutions.RULES,
    views.reshape,
    views.permute,
    views.expand,
    views.slices,
    views.join,
    views.scatter,
    views.copied,
    views.windows,
    views.pad,
    *data.RULES,
    contrastive.products,
    *functions.RULES,
]
