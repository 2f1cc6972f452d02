// Surprising fact: oneDNN must not be queried for this CPU's instructions, because it accepts no limit after it
// answers.
#include "kernels/cpu/kernel_choice.h"

#include <dnnl.h>
#include <dnnl_version.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>

#include "base/error.h"
#include "kernels/cpu/gemm/register_tile.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace prun::cpu {
namespace {

// A row for each value of Kernels, in their order.
struct Row {
  const char* text;
  dnnl_cpu_isa_t limit;  // oneDNN's limit
};
constexpr Row kRows[] = {
    {"any", dnnl_cpu_isa_sse41},
    {"avx2", dnnl_cpu_isa_avx2},
    {"avx512", dnnl_cpu_isa_avx512_core},
    {"avx512+bf16", dnnl_cpu_isa_avx512_core_bf16},
    {"avx512+pairs", dnnl_cpu_isa_avx512_core_bf16},
    {"avx512+tiles", dnnl_cpu_isa_all},
};
const Row& row(Kernels kernels) { return kRows[static_cast<size_t>(kernels)]; }

// Returns the highest level that ONEDNN_MAX_CPU_ISA allows; its values are oneDNN's.
Kernels allowed_by_environment() {
  const char* set = std::getenv("ONEDNN_MAX_CPU_ISA");
  if (set == nullptr) set = std::getenv("DNNL_MAX_CPU_ISA");
  std::string word = set == nullptr ? "" : set;
  std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto is = [&](std::initializer_list<const char*> words) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (is({"sse41", "avx"})) return Kernels::any;
  if (is({"avx2", "avx2_vnni"})) return Kernels::avx2;
  if (is({"avx512_core", "avx512_core_vnni"})) return Kernels::avx512;
  if (is({"avx512_core_bf16"})) return Kernels::pairs;
#if DNNL_VERSION_MAJOR >= 3  // version 2 ignores this value
  if (is({"avx512_core_fp16"})) return Kernels::pairs;
#endif
  return Kernels::tiles;
}

#if defined(__x86_64__)
bool cpu_has_tiles() {
  constexpr unsigned kBf16 = 1U << 22, kTile = 1U << 24, kInt8 = 1U << 25, kAll = kBf16 | kTile | kInt8;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAll) == kAll;
}

// Checks the features of x86-64-v3 and v4; clang 14 does not know the levels by name.
Kernels most_of_cpu() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("bmi2"))
    return Kernels::any;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512cd"))
    return Kernels::avx2;
  if (!__builtin_cpu_supports("avx512bf16")) return Kernels::avx512;
  return cpu_has_tiles() ? Kernels::tiles : Kernels::pairs;
}
#else
Kernels most_of_cpu() { return Kernels::any; }
#endif

constexpr int kNone = -1;
std::atomic<int> taken{kNone};

}  // namespace

std::string_view kernels_text(Kernels kernels) { return row(kernels).text; }

std::vector<std::string> kernels_texts() {
  std::vector<std::string> texts;
  for (const Row& each : kRows) texts.emplace_back(each.text);
  return texts;
}

std::optional<Kernels> parse_kernels(std::string_view text) {
  for (size_t i = 0; i < std::size(kRows); ++i)
    if (text == kRows[i].text) return static_cast<Kernels>(i);
  return std::nullopt;
}

Kernels most_kernels() {
  const Kernels most = std::min(most_of_cpu(), allowed_by_environment());
  return most == Kernels::tiles && !tiles_are_allowed() ? Kernels::pairs : most;
}

Kernels fastest_kernels(Kernels most) { return most == Kernels::pairs && !pairs_pay() ? Kernels::bf16 : most; }

void take_kernels(Kernels kernels) {
  const Kernels most = most_kernels();
  const int wanted = static_cast<int>(kernels), before = taken.load();
  if (before == wanted) return;
  PRUN_CHECK(before == kNone && kernels <= most,
             fmt::format("kernels for {} after {}, where {} is the most", kernels_text(kernels),
                         before == kNone ? "none" : kernels_text(static_cast<Kernels>(before)), kernels_text(most)));
  if (row(kernels).limit != row(most).limit) {
    const dnnl_status_t status = dnnl_set_max_cpu_isa(row(kernels).limit);
    PRUN_CHECK(status == dnnl_success, fmt::format("dnnl_set_max_cpu_isa returned {}", static_cast<int>(status)));
  }
  rounds_to_bf16 = kernels >= Kernels::bf16;
  taken.store(wanted);
}

Kernels kernels() {
  if (const int now = taken.load(std::memory_order_acquire); now != kNone) return static_cast<Kernels>(now);
  static const bool once = [] { return take_kernels(fastest_kernels(most_kernels())), true; }();
  PRUN_CHECK(once, "kernels");
  return static_cast<Kernels>(taken.load());
}

}  // namespace prun::cpu
