#include "gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "blas_choice.h"
#include "blas_gemm.h"
#include "cuda/device/context.h"
#include "cuda/kernels/part.h"

namespace prun::cuda {
namespace {

constexpr int64_t kMostScratch = int64_t{32} << 20;  // NVIDIA's advice for Hopper

// Rows and columns of a matrix. Tensors made from it point to it.
using Dims = std::array<int64_t, 2>;
Tensor matrix(const void* data, const Dims& dims, int dtype) { return {const_cast<void*>(data), {dims}, dtype}; }
Tensor row(const void* data, const Dims& dims, int dtype) {
  return {const_cast<void*>(data), {std::span(dims).subspan(1)}, dtype};
}

// The summed operand is stored with k as its rows, because it is dy of a linear's dw.
struct SumsPart {
  explicit SumsPart(const Gemm& gemm)
      : dims{gemm.shape.k, gemm.sum == Sums::of_a ? gemm.shape.m : gemm.shape.n},
        part{"bias_grad",
             {matrix(gemm.sum == Sums::of_a ? gemm.a : gemm.b, dims, gemm.shape.input)},
             {row(gemm.sums, dims, PRUN_F32)}} {
    if (gemm.added_sums == nullptr) return;
    part.kind = "bias_grad_add";
    part.reads.push_back(row(gemm.added_sums, dims, PRUN_F32));
  }
  SumsPart(const SumsPart&) = delete;
  Dims dims;
  Part part;
};

class Steps final : public Kernel {
 public:
  explicit Steps(Scratch scratch) : scratch_(std::move(scratch)) {}
  void add(std::unique_ptr<Kernel> step) { steps_.push_back(std::move(step)); }
  void run(cudaStream_t stream) override {
    for (const std::unique_ptr<Kernel>& step : steps_) step->run(stream);
  }

 private:
  Scratch scratch_;
  std::vector<std::unique_ptr<Kernel>> steps_;
};

// Plans the steps of one Gemm: the GEMM with the epilogues that cuBLASLt fuses well, then the remaining ops.
class Plan {
 public:
  Plan(const OpView& view, const Gemm& gemm)
      : context_(view.context()),
        gemm_(gemm),
        bytes_(gemm_workspace(gemm)),
        scratch_(scratch(view, bytes_)),
        steps_(std::make_unique<Steps>(scratch_)),
        dims_{s().batch * s().m, s().n} {}

  std::unique_ptr<Kernel> make() {
    if (dims_[0] * dims_[1] != 0) {
      if (!gemm_with_gelu() && !gemm_with_sums() && !gemm_with_bias()) gemm_alone();
      if (!activated_) activate();
    }
    if (gemm_.sum != Sums::none && !summed_) part(SumsPart(gemm_).part);
    return std::move(steps_);
  }

 private:
  const GemmShape& s() const { return gemm_.shape; }
  // Returns the destination of the GEMM and the bias; a separate activation reads it there.
  void* before_activation() const { return gemm_.pre != nullptr ? gemm_.pre : gemm_.c; }

  static bool on_16_bytes(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }
  std::unique_ptr<BlasGemm> find_gemm(const Epilogue& epilogue, void* to) {
    // cuBLASLt documents no alignment for an epilogue's operands; calls that failed because of it had less than this.
    if (s().k == 0 || !on_16_bytes(epilogue.vector) || !on_16_bytes(epilogue.matrix)) return nullptr;
    Gemm gemm = gemm_;
    gemm.c = to;
    return BlasGemm::find(context_, gemm, epilogue, scratch_.data, bytes_);
  }
  bool try_gemm(const Epilogue& epilogue, void* to) {
    std::unique_ptr<BlasGemm> found = find_gemm(epilogue, to);
    if (found == nullptr) return false;
    steps_->add(std::move(found));
    return true;
  }

  bool gemm_with_gelu() {
    const int capability = context_.capability();
    const bool one_kernel = capability >= 90 && capability < 120;  // on other GPUs one kernel is slower than two
    if (!one_kernel || s().input != PRUN_BF16 || s().output != PRUN_BF16 || s().batch != 1) return false;
    Epilogue epilogue;
    if (gemm_.gelu_input != nullptr) {
      epilogue = {CUBLASLT_EPILOGUE_DGELU, nullptr, gemm_.gelu_input};
    } else if (gemm_.activation == Activation::gelu_tanh) {
      const bool keeps = gemm_.pre != nullptr;
      if (gemm_.bias != nullptr)
        epilogue.kind = keeps ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_BIAS;
      else
        epilogue.kind = keeps ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU;
      epilogue.vector = gemm_.bias;
      epilogue.matrix = gemm_.pre;
    } else {
      return false;
    }
    // Requires rows that are multiples of 8 elements.
    if (epilogue.matrix != nullptr && s().n % 8 != 0) return false;
    return activated_ = try_gemm(epilogue, gemm_.c);
  }

  // The epilogue for a bias gradient rules out split-K, which a small dW needs to fill a GPU, and is slow for some
  // shapes, so it is used only after a measurement.
  bool gemm_with_sums() {
    if (gemm_.sum == Sums::none || s().batch != 1 || !context_.options().autotune) return false;
    if (gemm_.added_sums != nullptr) return false;  // the epilogue overwrites its vector
    // Our A is cuBLASLt's B (blas_gemm.h).
    const auto kind = gemm_.sum == Sums::of_a ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_BGRADA;
    const Epilogue epilogue{kind, gemm_.sums, nullptr};
    std::unique_ptr<BlasGemm> fused = find_gemm(epilogue, gemm_.c);
    if (fused == nullptr) return false;
    const std::unique_ptr<BlasGemm> apart = find_gemm({}, gemm_.c);
    if (apart == nullptr || !fused_sums_win(context_, gemm_, epilogue, *fused, *apart, bytes_)) return false;
    steps_->add(std::move(fused));
    return summed_ = true;
  }

  bool gemm_with_bias() {
    if (gemm_.bias == nullptr || s().batch != 1) return false;
    return try_gemm({CUBLASLT_EPILOGUE_BIAS, gemm_.bias, nullptr}, before_activation());
  }

  void gemm_alone() {
    if (!try_gemm({}, before_activation())) {
      if (s().k != 0)
        context_.log(2, fmt::format("cuBLASLt has no algorithm for a GEMM of {} x {} x {}: a slower kernel computes it",
                                    s().m, s().n, s().k));
      steps_->add(make_plain_gemm(s(), gemm_.a, gemm_.b, gemm_.added, before_activation()));
    }
    const Tensor y = whole(before_activation());
    if (gemm_.bias != nullptr) part({"bias", {y, row(gemm_.bias, dims_, s().input)}, {y}});
  }

  void activate() {
    const Tensor from = whole(before_activation()), to = whole(gemm_.c);
    if (gemm_.gelu_input != nullptr) part({"gelu_dx", {whole(gemm_.gelu_input), to}, {to}});
    if (gemm_.activation == Activation::relu) part({"relu", {from}, {to}});
    if (gemm_.activation == Activation::gelu_tanh) part({"gelu", {from}, {to}});
    if (gemm_.activation == Activation::gelu_erf) part({"gelu", {from}, {to}, "none"});
  }

  Tensor whole(const void* data) const { return matrix(data, dims_, s().output); }
  void part(const Part& part) { steps_->add(make_part(context_, part, scratch_, bytes_)); }

  Context& context_;
  const Gemm& gemm_;
  const size_t bytes_;
  const Scratch scratch_;
  std::unique_ptr<Steps> steps_;
  const Dims dims_;
  bool activated_ = false, summed_ = false;
};

// Returns the workspace of a split-K: 32 partial sums of C, in whole tiles. Small GEMMs cannot fill a GPU anyway, so
// they need less than the maximum.
size_t split_k_workspace(const GemmShape& s) {
  if (s.m == 0 || s.n == 0 || s.k == 0 || s.batch == 0) return 0;
  int64_t bytes = 32 * static_cast<int64_t>(sizeof(float));
  for (const int64_t factor : {(s.m + 63) / 64 * 64, (s.n + 63) / 64 * 64, s.batch}) {
    if (factor > kMostScratch / bytes) return static_cast<size_t>(kMostScratch);
    bytes *= factor;
  }
  return static_cast<size_t>(bytes);
}

}  // namespace

size_t gemm_workspace(const Gemm& gemm) {
  const size_t sums = gemm.sum == Sums::none ? 0 : part_workspace(SumsPart(gemm).part);
  return std::max(split_k_workspace(gemm.shape), sums);
}

std::unique_ptr<Kernel> make_gemm(const OpView& view, const Gemm& gemm) { return Plan(view, gemm).make(); }

std::unique_ptr<Kernel> make_gemms(const OpView& view, const std::vector<Gemm>& gemms) {
  auto steps = std::make_unique<Steps>(Scratch{});
  for (const Gemm& gemm : gemms) steps->add(make_gemm(view, gemm));
  return steps;
}

}  // namespace prun::cuda
