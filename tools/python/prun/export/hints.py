"""Why prun has no function for an op, and the likely way round, by the op's name in PyTorch."""
from __future__ import annotations

from torch.fx import Node

from .trace import op_name

NONE = "prun has no function for it"
_CONVOLUTION = "prun has convolutions of one and two dims, in three dims over patches that do not overlap only"
_RANDOM = "only nn.Dropout is random in a plan"
_WRITTEN = "write it with exp, clamp, torch.where and the like, which a plan has"
_BY_INDEX = "prun cannot pick elements by index yet"
EXPERTS = ("prun.export knows SwiGLU experts as those of Mixtral, with experts_implementation=\"grouped_mm\" or "
           "\"batched_mm\"; nn.moe makes them in a plan")
_PADDING = "prun pads with constants"
_RECURRENT = "prun has no recurrent layers"
_REDUCTION = "prun has mean, sum, amax and vector_norm over given dims, as x.mean(-1, keepdim=True)"
_PRODUCT = "prun has products with weights, attention, and a @ b of equal leading dims"

KNOWN = {
    "conv3d": _CONVOLUTION, "convolution": _CONVOLUTION, "conv_transpose3d": _CONVOLUTION,
    "softmax": "prun has softmax over the last dim; attention is softmax(q @ k.T / sqrt(size) + mask) @ v over heads",
    "matmul": _PRODUCT, "bmm": _PRODUCT, "baddbmm": _PRODUCT, "einsum": _PRODUCT,
    "reflection_pad2d": _PADDING, "replication_pad2d": _PADDING, "pad": _PADDING, "gru_cell": _RECURRENT, "lstm_cell": _RECURRENT,
    "rnn_tanh_cell": _RECURRENT, "rnn_relu_cell": _RECURRENT, "lstm": _RECURRENT, "gru": _RECURRENT, "rnn_tanh": _RECURRENT, "rnn_relu": _RECURRENT,
    "item": "a plan is the same for each batch: remove the branch or the number that depends on the data (.item())",
    "randn_like": _RANDOM, "rand_like": _RANDOM, "bernoulli": _RANDOM, "rand": _RANDOM, "uniform": _RANDOM, "uniform_": _RANDOM, "randn": _RANDOM,
    "mish": _WRITTEN, "hardswish": _WRITTEN, "hardtanh": _WRITTEN, "prelu": _WRITTEN, "softplus": _WRITTEN,
    "index": _BY_INDEX, "gather": _BY_INDEX, "index_select": _BY_INDEX,
    "topk": EXPERTS, "_grouped_mm": EXPERTS, "histc": EXPERTS, "one_hot": EXPERTS,
    "where": "prun has torch.where of a comparison or a constant; attention masks are recognised if they are causal",
    "mean": _REDUCTION, "sum": _REDUCTION, "amax": _REDUCTION, "max": _REDUCTION, "var": _REDUCTION,
}
# Ops of mixtures of experts, which send tokens to experts by numbers that depend on the data.
_ROUTING = {"topk", "_grouped_mm"}
_BELOW = 60  # nodes that are searched for them


def reason_of(node: Node) -> tuple[str, str]:
    """Returns the problem and the hint for a node that no rule recognises."""
    todo, seen = [node], {node}
    while todo and len(seen) < _BELOW:
        one = todo.pop(0)
        if op_name(one) in _ROUTING:
            return "a mixture of experts", EXPERTS
        if op_name(one) != "linear":
            more = [arg for arg in one.all_input_nodes if arg not in seen]
            seen.update(more)
            todo.extend(more)
    return NONE, KNOWN.get(op_name(node), "")
