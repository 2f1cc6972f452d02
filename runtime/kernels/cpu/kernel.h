// The building blocks of a family of kernels: a view of one op, an entry for each kind, a kernel made of a lambda.
//
// Convention: a maker checks shapes and resolves pointers; its lambda does the work and may not allocate. A new op is
// an entry in a family; a new family is a file and a name in PRUN_CPU_FAMILIES.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/device.h"
#include "device/element.h"
#include "device/share.h"

namespace prun::cpu {

// Scratch for the lifetime of a kernel: the op's workspace, or memory of its own if the workspace is too small because
// the program was compiled for another machine.
struct Scratch {
  std::byte* data = nullptr;
  std::shared_ptr<std::byte> owned;
};

// One op of a program, as seen by the maker of its kernel.
class OpView {
 public:
  OpView(const RankMemory& memory, const Op& op, int threads) : memory_(memory), op_(op), threads_(threads) {}

  int threads() const { return threads_; }
  int rank() const { return memory_.rank; }
  Share share_along(const std::string& axes) const { return prun::share_along(memory_, axes); }
  Share share(const std::string& attribute) const { return share_along(attrs().text(attribute)); }  // names axes
  TokenPositions token_positions(int64_t length) const { return {memory_, attrs(), length}; }
  const StepTable* table() const { return memory_.table; }
  const Program& program() const { return *memory_.program; }
  const Attrs& attrs() const { return op_.attrs; }
  std::string_view kind() const { return op_.def->name; }
  size_t reads() const { return op_.reads.size(); }
  size_t writes() const {
    return op_.writes.size() - (has_workspace(program(), op_) ? 1 : 0);
  }  // without the workspace
  const Tensor& read(size_t i) const { return tensor(op_.reads, i, "reads"); }
  const Tensor& write(size_t i) const { return tensor(op_.writes, i, "writes"); }

  template <class T>
  const T* in(size_t i) const {
    return static_cast<const T*>(pointer(op_.reads, i, kDtypeOf<T>, "read"));
  }
  template <class T>
  T* out(size_t i) const {
    return static_cast<T*>(pointer(op_.writes, i, kDtypeOf<T>, "write"));
  }
  Scratch scratch(int64_t bytes) const;
  // Checks that the tensor has this many elements.
  void expect_count(const Tensor& tensor, int64_t count) const;

 private:
  const Tensor& tensor(const std::vector<TensorId>& list, size_t i, const char* word) const;
  void* pointer(const std::vector<TensorId>& list, size_t i, Dtype dtype, const char* word) const;

  const RankMemory& memory_;
  const Op& op_;
  int threads_;
};

enum class Accepts : uint8_t {
  floats,       // f32 and bf16, by the first tensor
  numbers,      // f64, f32, bf16, i64, i32
  wide_result,  // reads floats, and may also write a single f64
  wide_sums,    // reads and writes floats and a single f64
};

struct KernelEntry {
  std::string_view kind;
  std::unique_ptr<Kernel> (*make)(const OpView& view);
  Accepts accepts = Accepts::floats;
  int64_t (*workspace)(const OpView& view) = nullptr;  // bytes; null: none
};
using Family = std::vector<KernelEntry>;

template <class F>
class LambdaKernel final : public Kernel {
 public:
  explicit LambdaKernel(F body) : body_(std::move(body)) {}
  void run() override { body_(); }

 private:
  F body_;
};

template <class F>
std::unique_ptr<Kernel> kernel_of(F body) {
  return std::make_unique<LambdaKernel<F>>(std::move(body));
}

// Calls f<T>() with the type of `dtype`: one of Accepts::floats, or of Accepts::numbers.
template <class F>
auto with_float(Dtype dtype, const F& f) {
  PRUN_CHECK(dtype == Dtype::f32 || dtype == Dtype::bf16, std::string(dtype_name(dtype)));
  return dtype == Dtype::f32 ? f.template operator()<float>() : f.template operator()<bf16>();
}
template <class F>
auto with_number(Dtype dtype, const F& f) {
  switch (dtype) {
    case Dtype::f64:
      return f.template operator()<double>();
    case Dtype::i64:
      return f.template operator()<int64_t>();
    case Dtype::i32:
      return f.template operator()<int32_t>();
    default:
      return with_float(dtype, f);
  }
}

// A maker for an entry: an expression of `view` and of T, the type of a tensor, read(i) or write(i).
#define PRUN_FLOAT_MAKER(tensor, ...) \
  [](const OpView& view) { return with_float(view.tensor.dtype, [&]<class T>() { return __VA_ARGS__; }); }
#define PRUN_NUMBER_MAKER(tensor, ...) \
  [](const OpView& view) { return with_number(view.tensor.dtype, [&]<class T>() { return __VA_ARGS__; }); }

// Return the last dim, and the number of rows of that width.
inline int64_t last_dim(const Shape& shape) { return shape.empty() ? 1 : shape.back(); }
inline int64_t row_count(const Shape& shape) {
  return last_dim(shape) == 0 ? 0 : element_count(shape) / last_dim(shape);
}

// clang-format off
#define PRUN_CPU_FAMILIES(X) \
  X(linear) X(activation) X(row_norm) X(rotary) X(attention) \
  X(embedding) X(position) X(cross_entropy) X(split_cross_entropy) X(loss) X(logits) \
  X(dropout) X(elementwise) X(piece) X(init) X(optimizer) \
  X(norm) X(check_finite) X(fingerprint) X(route) X(dispatch) X(expert_linear) X(expert_rows) \
  X(attend) X(attention_block) X(qkv) X(decode) X(pointwise) X(pointwise_update) X(muon) X(adafactor) X(reduction) \
  X(matmul) X(view) X(convolution) X(pooling)
// clang-format on
#define PRUN_DECLARE(name) extern const Family name##_kernels;
PRUN_CPU_FAMILIES(PRUN_DECLARE)
#undef PRUN_DECLARE

}  // namespace prun::cpu
