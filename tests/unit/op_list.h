// A list of ops with memory of its own, runnable on any device. Tests of kernels and derivatives execute ops with it.
#pragma once
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "device/device.h"
#include "device/element.h"

namespace prun {

inline Attrs make_attrs(std::initializer_list<std::pair<const char*, Attr>> pairs) {
  Attrs attrs;
  for (const auto& [name, value] : pairs) attrs.set(name, value);
  return attrs;
}

class OpList {
 public:
  // `skew`: default misalignment of tensors, in elements.
  explicit OpList(const Device& device, int threads = 1, int64_t skew = 0)
      : device_(device), threads_(threads), skew_(skew) {
    program_.mesh = Mesh({{"dp", 4}});
    table_.seed = 7;
    table_.step = table_.update = 3;
    table_.learning_rate = 0.01;
  }

  // Sets the rank that runs the ops (default: rank 2 of dp=4) and the values of its step. Call it before tensor().
  void place(const Mesh& mesh, int rank, const StepTable& table) {
    program_.mesh = mesh;
    rank_ = rank;
    table_ = table;
  }

  int tensor(const TensorType& type, Role role = Role::activation) { return tensor(type, skew_, role); }
  int tensor(const TensorType& type, int64_t elements_beside, Role role = Role::activation) {
    const int64_t skew = role == Role::workspace ? 0 : elements_beside * dtype_bytes(type.dtype);
    Tensor t{"t" + std::to_string(program_.tensors.size()), static_cast<int>(program_.buffers.size()), skew, type.dtype,
             type.shape};
    program_.buffers.push_back({t.name, role, round_up(skew + t.bytes(), kAlignBytes), program_.arena_bytes});
    program_.arena_bytes += program_.buffers.back().bytes + kAlignBytes;  // a gap, for written_beside
    program_.tensors.push_back(t);
    return static_cast<int>(program_.tensors.size()) - 1;
  }

  bool supports(std::string_view kind, std::vector<TensorId> reads, std::vector<TensorId> writes, Attrs attrs) const {
    return device_.supports(made(kind, std::move(reads), std::move(writes), std::move(attrs)), program_);
  }

  void op(std::string_view kind, std::vector<TensorId> reads, std::vector<TensorId> writes, Attrs attrs) {
    Op op = made(kind, std::move(reads), std::move(writes), std::move(attrs));
    PRUN_CHECK(device_.supports(op, program_), std::string(kind));
    int64_t workspace = device_.workspace_bytes(program_, op, threads_);
    if (workspace > 0) op.writes.push_back(tensor({Dtype::u8, {workspace}}, Role::workspace));
    ops_.push_back(std::move(op));
  }

  // Lays out memory. Every byte that no caller sets is kUnset, so that skipped elements are detected.
  void make() {
    // The memory has pages of its own because a device may pin them, and large ones as a rank's arena does.
    constexpr int64_t kPage = 4096, kLargePage = int64_t{1} << 21;
    const int64_t bytes = program_.arena_bytes + kAlignBytes, page = bytes < kLargePage ? kPage : kLargePage;
    const auto size = static_cast<size_t>(round_up(bytes, page));
    arena_.reset(static_cast<std::byte*>(std::aligned_alloc(static_cast<size_t>(page), size)));
    if (page == kLargePage) madvise(arena_.get(), size, MADV_HUGEPAGE);
    std::memset(arena_.get(), kUnset, static_cast<size_t>(program_.arena_bytes));
    memory_ = {arena_.get(), rank_, &program_, &table_};
    for (const Op& op : ops_) kernels_.push_back(device_.make_kernel(memory_, op, threads_));
  }

  Kernel& kernel() const { return *kernels_.back(); }
  void run() {
    for (const auto& kernel : kernels_) kernel->run();
  }

  // Returns the name of a tensor outside whose bounds something was written, or "".
  std::string written_beside() const {
    int64_t at = 0;
    for (const Tensor& t : program_.tensors) {
      const int64_t begin = program_.buffers[t.buffer].offset + t.byte_offset;
      for (; at < begin; ++at)
        if (arena_.get()[at] != std::byte{kUnset}) return "before " + t.name;
      at = begin + t.bytes();
    }
    for (; at < program_.arena_bytes; ++at)
      if (arena_.get()[at] != std::byte{kUnset}) return "behind the last tensor";
    return "";
  }

  void set(TensorId id, const std::vector<double>& values) {
    const Tensor& t = program_.tensors[id];
    PRUN_CHECK(static_cast<int64_t>(values.size()) == t.count(), shape_text(t.shape));
    for (size_t i = 0; i < values.size(); ++i)
      store_element(t.dtype, memory_.data(id), static_cast<int64_t>(i), values[i]);
  }
  std::vector<double> get(TensorId id) const {
    const Tensor& t = program_.tensors[id];
    std::vector<double> values(static_cast<size_t>(t.count()));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = load_element(t.dtype, memory_.data(id), static_cast<int64_t>(i));
    return values;
  }
  const Program& program() const { return program_; }

 private:
  static constexpr unsigned char kUnset = 0xa5;

  static Op made(std::string_view kind, std::vector<TensorId> reads, std::vector<TensorId> writes, Attrs attrs) {
    Op op;
    op.def = &op_def(kind);
    op.reads = std::move(reads);
    op.writes = std::move(writes);
    op.attrs = std::move(attrs);
    return op;
  }
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };

  const Device& device_;
  int threads_;
  int64_t skew_;
  int rank_ = 2;
  Program program_;
  StepTable table_;
  std::vector<Op> ops_;
  std::unique_ptr<std::byte, Free> arena_;
  RankMemory memory_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
};

}  // namespace prun
