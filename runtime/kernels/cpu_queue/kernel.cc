#include "kernels/cpu_queue/kernel.h"

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/cpu/cpu_device.h"

namespace prun::cpu_queue {
namespace {

const Device& cpu() {
  static const std::unique_ptr<Device> device = make_cpu_device();
  return *device;
}

Attr attr_of(const prun_attr& attr) {
  switch (attr.type) {
    case PRUN_ATTR_INTEGER:
      return attr.integer;
    case PRUN_ATTR_NUMBER:
      return attr.number;
    case PRUN_ATTR_TEXT:
      return std::string(attr.text);
    case PRUN_ATTR_INTEGERS:
      return std::vector<int64_t>(attr.integers, attr.integers + attr.n);
    case PRUN_ATTR_NUMBERS:
      return std::vector<double>(attr.numbers, attr.numbers + attr.n);
    default:
      throw plan_error(fmt::format("attribute {} has type {}, which there is not", attr.name, attr.type));
  }
}

}  // namespace

OneOp::OneOp(const prun_op& op) : caller_(op), threads_(op.threads) {
  op_.def = find_op(op.kind);
  if (op_.def == nullptr) throw plan_error(fmt::format("there is no op {}", op.kind));
  for (size_t i = 0; i < op.n_reads; ++i) op_.reads.push_back(add(op.reads[i], Role::activation));
  for (size_t i = 0; i < op.n_writes; ++i) op_.writes.push_back(add(op.writes[i], Role::activation));
  for (size_t i = 0; i < op.n_attrs; ++i) op_.attrs.set(op.attrs[i].name, attr_of(op.attrs[i]));
  if (op.workspace_bytes > 0) {
    const int64_t bytes = static_cast<int64_t>(op.workspace_bytes);
    op_.writes.push_back(add({op.workspace, &bytes, 1, PRUN_U8}, Role::workspace));
  }
  memory_.rank = op.rank;
  memory_.program = &program_;
  memory_.table = static_cast<const StepTable*>(op.values);
  memory_.tensors = &addresses_;
  memory_.caller = &caller_;
}

// A tensor that is read and written is added twice; kernels detect in-place use by pointers.
int OneOp::add(const prun_tensor& tensor, Role role) {
  const int id = std::ssize(program_.tensors);
  Tensor made;
  made.name = fmt::format("tensor {}", id);
  made.buffer = id;
  made.dtype = static_cast<Dtype>(tensor.dtype);
  made.shape.assign(tensor.dims, tensor.dims + tensor.rank);
  Buffer buffer;
  buffer.name = made.name;
  buffer.role = role;
  buffer.bytes = made.bytes();
  program_.tensors.push_back(std::move(made));
  program_.buffers.push_back(std::move(buffer));
  addresses_.push_back(tensor.ptr);
  return id;
}

bool OneOp::supported() const { return cpu().supports(op_, program_); }

int64_t OneOp::workspace_bytes() const { return supported() ? cpu_workspace_bytes(memory_, op_, threads_) : 0; }

std::unique_ptr<Kernel> OneOp::make() const { return cpu().make_kernel(memory_, op_, threads_); }

}  // namespace prun::cpu_queue
