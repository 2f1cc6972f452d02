// See gemm.h. The table of GEMM implementations: the first entry that accepts a shape computes it. A process selects
// its entries once, by its kernels (kernel_choice.h); a GEMM selects its entry when it is constructed, by its shape
// alone. Each entry's results are bitwise identical on any number of threads.
#include "kernels/cpu/gemm/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/gemm/driver.h"
#include "kernels/cpu/gemm/onednn.h"
#include "kernels/cpu/gemm/register_tile.h"
#include "kernels/cpu/kernel_choice.h"

namespace prun::cpu {
namespace {

// Accepts whole AMX tiles; smaller GEMMs would be mostly padding.
bool fills_tiles(const GemmShape& s) { return s.input == Dtype::bf16 && s.m >= kBlock && s.n >= kSide; }

// Pair panels are at least as fast as oneDNN if the FMAs dominate packing and writing C, and the last panel of B has
// little padding. With B transposed oneDNN is faster.
bool fills_panels(const GemmShape& s) {
  constexpr int64_t kLeast = 128, kPanel = 32;
  const int64_t padded = (s.n + kPanel - 1) / kPanel * kPanel;
  return s.input == Dtype::bf16 && !s.transpose_b && std::min({s.m, s.n, s.k}) >= kLeast &&
         (padded - s.n) * kPanel <= s.n;
}

bool is_bf16(const GemmShape& s) { return s.input == Dtype::bf16; }
bool is_any(const GemmShape&) { return true; }

struct Entry {
  Kernels from, to;  // the range of kernels that have it
  bool (*takes)(const GemmShape&);
  const Backend* backend;  // null: oneDNN
};

constexpr Entry kTable[] = {
    {Kernels::tiles, Kernels::tiles, fills_tiles, &kAmxTiles},
    {Kernels::pairs, Kernels::pairs, fills_panels, &kPairPanels},
    {Kernels::bf16, Kernels::tiles, [](const GemmShape& s) { return is_bf16(s) && onednn_has(s); }, nullptr},
    {Kernels::pairs, Kernels::pairs, is_bf16, &kPairPanels},
    {Kernels::avx512, Kernels::tiles, is_any, &kFloatPanelsAvx512},
    {Kernels::avx2, Kernels::avx2, is_any, &kFloatPanelsAvx2},
    {Kernels::any, Kernels::any, is_any, &kFloatPanels},
};

// Returns the entries of this process.
const std::vector<Entry>& entries() {
  static const std::vector<Entry> taken = [] {
    std::vector<Entry> of_kernels;
    for (const Entry& entry : kTable)
      if (entry.from <= kernels() && kernels() <= entry.to) of_kernels.push_back(entry);
    return of_kernels;
  }();
  return taken;
}

const Entry& entry_of(const GemmShape& shape) {
  for (const Entry& entry : entries())
    if (entry.takes(shape)) return entry;
  PRUN_CHECK(false, "no GEMM");
  return entries().back();
}

}  // namespace

const Backend& panel_backend(const GemmShape& shape) {
  const auto found = std::find_if(entries().begin(), entries().end(), [&](const Entry& entry) {
    return (entry.takes == is_bf16 || entry.takes == is_any) && entry.takes(shape);
  });
  return *found->backend;
}

std::string gemm_library() { return onednn_version(); }

int64_t gemm_scratch_bytes(const GemmShape& shape) {
  PRUN_CHECK(shape.m > 0 && shape.n > 0 && shape.k > 0, fmt::format("m={} n={} k={}", shape.m, shape.n, shape.k));
  static std::mutex mutex;
  static std::map<GemmShape, int64_t> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find(shape);
  if (found != known.end()) return found->second;
  const Backend* backend = entry_of(shape).backend;
  return known[shape] = backend == nullptr ? onednn_scratch_bytes(shape) : driver_scratch_bytes(*backend, shape);
}

struct Gemm::State {
  GemmShape shape;
  const void *a, *b, *bias;
  void *c, *scratch;
  const Backend* backend = nullptr;
  std::unique_ptr<OnednnGemm> library;  // null: `backend` runs
  void run(float* sums = nullptr) const { run_driver(*backend, shape, a, b, bias, c, scratch, false, sums); }
};

Gemm::Gemm(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c, void* scratch)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.shape = shape;
  s.a = a, s.b = b, s.bias = bias, s.c = c, s.scratch = scratch;
  s.backend = entry_of(shape).backend;
  if (s.backend == nullptr) s.library = std::make_unique<OnednnGemm>(shape, a, b, bias, c, scratch);
}

Gemm::Gemm(Gemm&&) noexcept = default;
Gemm::~Gemm() = default;

void Gemm::run() const { state_->library != nullptr ? state_->library->run() : state_->run(); }

bool Gemm::takes_sums() const {
  return state_->backend != nullptr && state_->backend->sums_columns && !state_->shape.transpose_b;
}

void Gemm::run_and_sum(float* sums) const {
  PRUN_CHECK(takes_sums(), "sums of columns while B is packed");
  state_->run(sums);
}

bool Gemm::takes_parts() const {
  const GemmShape& s = state_->shape;
  return s.input == Dtype::f32 && s.output == Dtype::f32 && !s.bias && s.activation == Activation::none;
}

void Gemm::run_part(int64_t first, int64_t rows, bool add) const {
  const GemmShape& s = state_->shape;
  PRUN_CHECK(takes_parts(), "a part of a GEMM of fixed size");
  const float* a = static_cast<const float*>(state_->a) + first * (s.transpose_a ? s.m : s.k);
  const float* b = static_cast<const float*>(state_->b) + (s.transpose_a ? first * s.n : 0);
  float* c = static_cast<float*>(state_->c) + (s.transpose_a ? 0 : first * s.n);
  GemmShape part = s;
  (s.transpose_a ? part.k : part.m) = rows;
  run_driver(*state_->backend, part, a, b, nullptr, c, state_->scratch, add);
}

}  // namespace prun::cpu
