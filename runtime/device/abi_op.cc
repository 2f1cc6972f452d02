#include "device/abi_op.h"

#include "device/share.h"

namespace prun {
namespace {

prun_attr attr_of(const std::string& name, const Attr& value) {
  prun_attr attr{};
  attr.name = name.c_str();
  if (const int64_t* integer = std::get_if<int64_t>(&value)) {
    attr.type = PRUN_ATTR_INTEGER;
    attr.integer = *integer;
  } else if (const double* number = std::get_if<double>(&value)) {
    attr.type = PRUN_ATTR_NUMBER;
    attr.number = *number;
  } else if (const std::string* text = std::get_if<std::string>(&value)) {
    attr.type = PRUN_ATTR_TEXT;
    attr.text = text->c_str();
  } else if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) {
    attr.type = PRUN_ATTR_INTEGERS;
    attr.integers = integers->data();
    attr.n = integers->size();
  } else {
    const auto& numbers = std::get<std::vector<double>>(value);
    attr.type = PRUN_ATTR_NUMBERS;
    attr.numbers = numbers.data();
    attr.n = numbers.size();
  }
  return attr;
}

void share_of(const void* mesh, const char* axes, int64_t* index, int64_t* of) {
  const Share share = share_along(*static_cast<const RankMemory*>(mesh), axes);
  *index = share.index;
  *of = share.of;
}

}  // namespace

AbiOp::AbiOp(const RankMemory& memory, const Op& op, int threads, const prun_step_values* values, const char* options)
    : memory_(memory) {
  const bool scratch = has_workspace(*memory.program, op);
  for (const TensorId id : op.reads) reads_.push_back(tensor(memory, id));
  for (size_t i = 0; i + (scratch ? 1 : 0) < op.writes.size(); ++i) writes_.push_back(tensor(memory, op.writes[i]));
  for (const auto& [name, value] : op.attrs.values()) attrs_.push_back(attr_of(name, value));
  op_.size = sizeof op_;
  op_.kind = op.def->name.data();  // a literal, which ends with a null
  op_.reads = reads_.data();
  op_.n_reads = reads_.size();
  op_.writes = writes_.data();
  op_.n_writes = writes_.size();
  op_.attrs = attrs_.data();
  op_.n_attrs = attrs_.size();
  if (scratch) {
    op_.workspace = tensor(memory, op.writes.back()).ptr;
    op_.workspace_bytes = memory.program->tensors[op.writes.back()].bytes();
  }
  op_.values = values;
  op_.rank = memory.rank;
  op_.threads = threads;
  op_.share = share_of;
  op_.mesh = &memory_;
  op_.options = options;
}

prun_tensor AbiOp::tensor(const RankMemory& memory, TensorId id) const {
  const Tensor& t = memory.program->tensors[id];
  prun_tensor made{};
  if (memory.arena != nullptr || memory.tensors != nullptr) made.ptr = memory.data(id);
  made.dims = t.shape.data();
  made.rank = std::ssize(t.shape);
  made.dtype = static_cast<int>(t.dtype);
  return made;
}

}  // namespace prun
