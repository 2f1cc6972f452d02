// The key of a kind is the bytes of everything that a rule may read from an op; each variable-length part is preceded
// by its length.
#include "verify/op_kinds.h"

#include <algorithm>
#include <variant>

namespace prun::verify {
namespace {

void put_bytes(std::string& key, const void* bytes, size_t count) {
  key.append(static_cast<const char*>(bytes), count);
}

template <class T>
void put_number(std::string& key, T number) {
  put_bytes(key, &number, sizeof number);
}

template <class List>
void put_list(std::string& key, const List& list) {
  put_number(key, static_cast<uint32_t>(list.size()));
  put_bytes(key, list.data(), list.size() * sizeof *list.data());
}

void put_attr(std::string& key, const Attr& attr) {
  put_number(key, static_cast<uint8_t>(attr.index()));
  std::visit(
      [&](const auto& value) {
        if constexpr (requires { value.data(); })
          put_list(key, value);
        else
          put_number(key, value);
      },
      attr);
}

void put_operands(std::string& key, const Program& program, const Op& op, const std::vector<TensorId>& ids) {
  put_number(key, static_cast<uint32_t>(ids.size()));
  for (const TensorId id : ids) {
    const Tensor& tensor = program.tensors[id];
    put_number(key, tensor.dtype);
    put_list(key, tensor.shape);
    const auto read = std::find(op.reads.begin(), op.reads.end(), id);  // index of the first operand that is this
                                                                        // tensor
    put_number(key, static_cast<uint32_t>(read - op.reads.begin()));
  }
}

}  // namespace

int OpKinds::of(const Program& program, const Op& op) {
  key_.clear();
  put_number(key_, op.def);
  put_operands(key_, program, op, op.reads);
  put_operands(key_, program, op, op.writes);
  put_list(key_, op.axis);
  for (const auto& [name, attr] : op.attrs.values()) {
    put_list(key_, name);
    put_attr(key_, attr);
  }
  return kinds_.try_emplace(key_, kinds_.size()).first->second;
}

}  // namespace prun::verify
