// One op of a program as seen by its kernel's maker: typed pointers, attributes, the rank's share; and a kernel.
//
// Convention: a maker checks shapes and resolves pointers; run() only enqueues, allocates nothing and throws Failure.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/device/failure.h"
#include "cuda/device/options.h"
#include "prun/device.h"
#include "prun/sdk/kernels.h"

namespace prun::cuda {

using bf16 = __nv_bfloat16;
class Context;  // context.h: the open device, with its libraries' handles

template <class T>
inline constexpr int kDtypeOf = -1;
template <>
inline constexpr int kDtypeOf<double> = PRUN_F64;
template <>
inline constexpr int kDtypeOf<float> = PRUN_F32;
template <>
inline constexpr int kDtypeOf<bf16> = PRUN_BF16;
template <>
inline constexpr int kDtypeOf<int64_t> = PRUN_I64;
template <>
inline constexpr int kDtypeOf<int32_t> = PRUN_I32;
template <>
inline constexpr int kDtypeOf<uint8_t> = PRUN_U8;

int64_t dtype_bytes(int dtype);

struct Shape {
  std::span<const int64_t> dims;
  int64_t count() const;
  int64_t last() const { return dims.empty() ? 1 : dims.back(); }
  int64_t rows() const { return last() == 0 ? 0 : count() / last(); }  // the count of all dims but the last
  int64_t operator[](size_t i) const { return dims[i]; }
  size_t rank() const { return dims.size(); }
};

std::string shape_text(const Shape& shape);  // "[2, 3]"

struct Tensor {
  void* ptr = nullptr;
  Shape shape;
  int dtype = PRUN_F32;
  int64_t count() const { return shape.count(); }
  int64_t bytes() const { return count() * dtype_bytes(dtype); }
};

using sdk::Share;
using sdk::TokenPositions;

// An op as its kernel's maker sees it. The view is valid only as long as the prun_op, so a maker copies the data that
// its kernel needs.
class OpView {
 public:
  // `context` is null if only sizes are queried.
  OpView(const prun_op& op, Context* context) : op_(op), context_(context) {}

  std::string_view kind() const { return op_.kind; }
  Context& context() const { return *context_; }
  Options options() const;  // options of the open device; without a context, the options with which the op was compiled
  size_t reads() const { return op_.n_reads; }
  size_t writes() const { return op_.n_writes; }
  Tensor read(size_t i) const;  // throws Failure(PRUN_EINVAL) if there is no such read
  Tensor write(size_t i) const;
  // Typed pointers. Throw Failure(PRUN_EINVAL) if the tensor has another type.
  template <class T>
  const T* in(size_t i) const {
    return static_cast<const T*>(typed(read(i), kDtypeOf<T>));
  }
  template <class T>
  T* out(size_t i) const {
    return static_cast<T*>(typed(write(i), kDtypeOf<T>));
  }
  void expect_count(const Tensor& tensor, int64_t count) const;
  // Throws Failure(PRUN_EINVAL) with the text `otherwise` unless `good`.
  void expect(bool good, const std::string& otherwise) const;

  bool has(std::string_view attr) const { return find(attr) != nullptr; }
  int64_t integer(std::string_view attr, int64_t fallback = 0) const;
  double number(std::string_view attr, double fallback = 0) const;  // accepts an integer, too
  std::string text(std::string_view attr, std::string_view fallback = "") const;
  std::span<const int64_t> integers(std::string_view attr) const;
  std::vector<double> numbers(std::string_view attr) const;  // accepts integers, too

  Share share_along(const std::string& axes) const;
  Share share(std::string_view attr) const { return share_along(text(attr)); }  // the attribute names the axes
  TokenPositions token_positions(int64_t length) const;
  int rank() const { return op_.rank; }
  const prun_step_values* values() const { return op_.values; }  // pointer into the device's memory
  void* workspace() const { return op_.workspace; }  // of the size that the entry's `workspace` returned; see scratch
  size_t workspace_bytes() const { return op_.workspace_bytes; }

 private:
  const prun_attr* find(std::string_view name) const;
  void* typed(const Tensor& tensor, int dtype) const;

  const prun_op& op_;
  Context* context_;
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void run(cudaStream_t stream) = 0;
};

template <class F>
class LambdaKernel final : public Kernel {
 public:
  explicit LambdaKernel(F body) : body_(std::move(body)) {}
  void run(cudaStream_t stream) override { body_(stream); }

 private:
  F body_;
};

template <class F>
std::unique_ptr<Kernel> kernel_of(F body) {
  return std::make_unique<LambdaKernel<F>>(std::move(body));
}

// Device memory with the lifetime of the kernel that holds it: small tables, or scratch if the op's workspace is
// missing or too small. device_table returns after the copy has finished.
std::shared_ptr<void> device_memory(Context& context, size_t bytes);
std::shared_ptr<void> device_table(Context& context, const void* data, size_t bytes);

// The alignment that cuBLASLt requires of its workspace; arenas give less, so an op requests more bytes (plugin.cc).
inline constexpr size_t kScratchAlign = 256;

// Scratch: the op's workspace, or memory of its own if the workspace of a program compiled for another machine is too
// small.
struct Scratch {
  void* data = nullptr;
  std::shared_ptr<void> owned;
};
Scratch scratch(const OpView& view, size_t bytes);

struct KernelEntry {
  const char* kind;
  std::unique_ptr<Kernel> (*make)(const OpView& view);
  size_t (*workspace)(const OpView& view) = nullptr;     // bytes; null: none
  std::string (*refuses)(const OpView& view) = nullptr;  // "" or why; null: accepts f32 and bf16, i32 and i64 (op.cc)
};

// Calls f<T>() with the type of `dtype`: f32 or bf16, and in with_number also f64, i64, i32. Throws
// Failure(PRUN_ENOTSUP) for other dtypes.
[[noreturn]] void no_kernel_for(int dtype);
template <class F>
auto with_float(int dtype, const F& f) {
  if (dtype == PRUN_F32) return f.template operator()<float>();
  if (dtype == PRUN_BF16) return f.template operator()<bf16>();
  no_kernel_for(dtype);
}
template <class F>
auto with_number(int dtype, const F& f) {
  if (dtype == PRUN_F64) return f.template operator()<double>();
  if (dtype == PRUN_I64) return f.template operator()<int64_t>();
  if (dtype == PRUN_I32) return f.template operator()<int32_t>();
  return with_float(dtype, f);
}

// Returns why there is no kernel for this op; "" if there is a kernel.
std::string why_refused(const OpView& view);

inline std::string takes_any(const OpView&) { return ""; }  // a KernelEntry's `refuses`

// Registers the kernels of a file for find_entry: one `const KernelFamily kFamily = {{kind, make}, ...};` per file.
struct KernelFamily {
  KernelFamily(std::initializer_list<KernelEntry> entries);
  KernelFamily(const KernelFamily&) = delete;
};
// Returns the entry of a kind; null if there is none.
const KernelEntry* find_entry(std::string_view kind);

}  // namespace prun::cuda
