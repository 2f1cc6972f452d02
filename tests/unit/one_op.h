// A program of one op, for tests of kernels: tensors hold doubles at the rim and the op's own types inside.
//
// Surprising fact: every buffer is followed by a guard of 64 bytes that run() checks, so a kernel that writes past a
// tensor fails its test.
#pragma once
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/device.h"
#include "device/element.h"
#include "ir/op_def.h"

namespace prun::test {

inline double rounded_to(Dtype dtype, double x) {
  alignas(8) std::byte element[8];
  store_element(dtype, element, 0, x);
  return load_element(dtype, element, 0);
}

class OneOp {
 public:
  explicit OneOp(const std::string& kind) { op_.def = &op_def(kind); }

  OneOp& attr(const std::string& name, Attr value) {
    op_.attrs.set(name, std::move(value));
    return *this;
  }
  OneOp& read(Dtype dtype, Shape shape, const std::vector<double>& values) {
    op_.reads.push_back(add(dtype, std::move(shape)));
    initial_.emplace_back(op_.reads.back(), values);
    return *this;
  }
  OneOp& write(Dtype dtype, Shape shape) {
    op_.writes.push_back(add(dtype, std::move(shape)));
    return *this;
  }
  // The op's next output is the memory of its input `read`.
  OneOp& write_over(size_t read) {
    op_.writes.push_back(op_.reads[read]);
    return *this;
  }
  OneOp& mesh(std::vector<Axis> axes, int rank) {
    program_.mesh = Mesh(std::move(axes));
    memory_.rank = rank;
    return *this;
  }
  OneOp& at_step(int64_t step, double learning_rate, uint64_t seed = 0) {
    table_.step = step;
    table_.learning_rate = learning_rate;
    table_.seed = seed;
    return *this;
  }

  // Makes the kernel (with its workspace) and fills the inputs.
  Kernel& prepare(const Device& device, int threads = 1) {
    const size_t outputs = op_.writes.size();
    const int64_t bytes = device.workspace_bytes(program_, op_, threads);
    if (bytes > 0) {
      op_.writes.push_back(add(Dtype::u8, {bytes}));
      program_.buffers.back().role = Role::workspace;
    }
    program_.arena_bytes += kAlignBytes;
    arena_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignBytes, static_cast<size_t>(program_.arena_bytes))));
    std::memset(arena_.get(), kGuard, static_cast<size_t>(program_.arena_bytes));
    for (const auto& [id, values] : initial_) {
      PRUN_CHECK(static_cast<int64_t>(values.size()) == tensor(id).count(), tensor(id).name);
      for (size_t i = 0; i < values.size(); ++i)
        store_element(tensor(id).dtype, data(id), static_cast<int64_t>(i), values[i]);
    }
    memory_.arena = arena_.get();
    memory_.program = &program_;
    memory_.table = &table_;
    kernel_ = device.make_kernel(memory_, op_, threads);
    op_.writes.resize(outputs);
    return *kernel_;
  }
  OneOp& run(const Device& device, int threads = 1) {
    prepare(device, threads).run();
    return *this;
  }

  std::vector<double> result(size_t write = 0) const {
    const int id = op_.writes[write];
    std::vector<double> values;
    for (int64_t i = 0; i < tensor(id).count(); ++i) values.push_back(load_element(tensor(id).dtype, data(id), i));
    return values;
  }
  // Whether no byte between the tensors has changed.
  bool guards_intact() const {
    for (size_t i = 0; i < program_.buffers.size(); ++i) {
      const Buffer& b = program_.buffers[i];
      const int64_t end = b.offset + round_up(b.bytes, kAlignBytes) + kAlignBytes;
      for (int64_t at = b.offset + program_.tensors[i].bytes(); at < end; ++at) {
        if (arena_.get()[at] != std::byte{kGuard}) return false;
      }
    }
    return true;
  }
  const Op& op() const { return op_; }
  const Program& program() const { return program_; }

 private:
  static constexpr int kGuard = 0x5a;
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };

  int add(Dtype dtype, Shape shape) {
    Tensor t;
    t.name = "t" + std::to_string(program_.tensors.size());
    t.buffer = static_cast<int>(program_.buffers.size());
    t.dtype = dtype;
    t.shape = std::move(shape);
    Buffer b;
    b.name = t.name;
    b.bytes = t.bytes();
    b.offset = program_.arena_bytes;
    program_.arena_bytes += round_up(b.bytes, kAlignBytes) + kAlignBytes;
    program_.tensors.push_back(std::move(t));
    program_.buffers.push_back(std::move(b));
    return static_cast<int>(program_.tensors.size()) - 1;
  }
  const Tensor& tensor(int id) const { return program_.tensors[static_cast<size_t>(id)]; }
  std::byte* data(int id) const { return arena_.get() + program_.buffers[static_cast<size_t>(id)].offset; }

  Op op_;
  Program program_;
  RankMemory memory_;
  StepTable table_;
  std::vector<std::pair<int, std::vector<double>>> initial_;
  std::unique_ptr<std::byte, Free> arena_;
  std::unique_ptr<Kernel> kernel_;
};

}  // namespace prun::test
