// Names of the communication ops. Which bytes cross the wire depends on the group, so their cost belongs to comm.
#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

constexpr OpDef communication_op(std::string_view name) { return {.name = name, .op_class = OpClass::communication}; }

const OpDef kOps[] = {
    communication_op("all_reduce"),     communication_op("reduce"),     communication_op("broadcast"),
    communication_op("all_gather"),     communication_op("gather"),     communication_op("scatter"),
    communication_op("reduce_scatter"), communication_op("all_to_all"), communication_op("barrier"),
    communication_op("all_gather_v"),   communication_op("send"),       communication_op("recv"),
};

}  // namespace

std::span<const OpDef> communication() { return kOps; }

}  // namespace prun::ops
