// Which kernels a process chooses. Each case runs in its own process because the choice is made once per process.
#include "kernels/cpu/kernel_choice.h"

#include <dnnl.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "kernels/cpu/gemm/register_tile.h"
#include "kernels/cpu/instruction_set.h"

namespace prun::cpu {
namespace {

// EXPECT_EXIT needs a statement that ends the process.
[[noreturn]] void end_with(bool right) { std::_Exit(right ? 0 : 1); }

const auto kRight = testing::ExitedWithCode(0);

// The highest level that oneDNN would choose. Our kernels also need FMA, BMI2 and AVX512CD, which all CPUs with AVX2
// and AVX-512 have.
Kernels most_of_onednn() {
  const unsigned isa = dnnl_get_effective_cpu_isa();
  const auto has = [isa](unsigned level) { return (isa & level) == level; };
  if (has(dnnl_cpu_isa_avx512_core_amx)) return Kernels::tiles;
  if (has(dnnl_cpu_isa_avx512_core_bf16)) return Kernels::pairs;
  if (has(dnnl_cpu_isa_avx512_core)) return Kernels::avx512;
  return has(dnnl_cpu_isa_avx2) ? Kernels::avx2 : Kernels::any;
}

TEST(KernelChoice, TextsAreRead) {
  for (const std::string& text : kernels_texts()) {
    ASSERT_TRUE(parse_kernels(text)) << text;
    EXPECT_EQ(kernels_text(*parse_kernels(text)), text);
  }
  EXPECT_EQ(kernels_texts().size(), static_cast<size_t>(Kernels::tiles) + 1);
  EXPECT_EQ(parse_kernels("avx512+pairs"), Kernels::pairs);
  for (const char* wrong : {"", "avx", "AVX2", "avx512+", "avx512 pairs"}) EXPECT_FALSE(parse_kernels(wrong)) << wrong;
}

TEST(KernelChoice, TheEnvironmentLimitsAsForOneDnn) {
  for (const char* limit : {"SSE41", "AVX", "AVX2", "AVX512_CORE", "avx512_core_vnni", "AVX512_CORE_BF16",
                            "AVX512_CORE_FP16", "AVX512_CORE_AMX", "ALL", "DEFAULT", "no such"})
    EXPECT_EXIT(
        {
          setenv("ONEDNN_MAX_CPU_ISA", limit, 1);
          const Kernels ours = most_kernels();
          end_with(ours == most_of_onednn());
        },
        kRight, "")
        << limit;
}

TEST(KernelChoice, WhatIsTakenIsWhatKernelsAsk) {
  for (const std::string& text : kernels_texts()) {
    const Kernels choice = *parse_kernels(text);
    if (choice > most_kernels()) continue;
    EXPECT_EXIT(
        {
          take_kernels(choice);
          take_kernels(choice);  // as a forked rank does
          const InstructionSet set = choice == Kernels::any    ? InstructionSet::any
                                     : choice == Kernels::avx2 ? InstructionSet::avx2
                                                               : InstructionSet::avx512;
          end_with(kernels() == choice && instruction_set() == set && has_avx512_bf16() == (choice >= Kernels::bf16) &&
                   rounds_to_bf16 == (choice >= Kernels::bf16) && has_pair_gemm() == (choice == Kernels::pairs) &&
                   has_amx() == (choice == Kernels::tiles) && most_of_onednn() >= std::min(choice, Kernels::pairs) &&
                   (choice == Kernels::tiles || most_of_onednn() <= std::max(choice, Kernels::pairs)));
        },
        kRight, "")
        << text;
  }
}

TEST(KernelChoice, WhereNothingIsTakenItIsTheFastest) {
  EXPECT_EXIT(
      {
        const Kernels found = kernels();
        const Kernels most = most_kernels();
        end_with(found == kernels() && (found == most || (found == Kernels::bf16 && most == Kernels::pairs)));
      },
      kRight, "");
  for (Kernels most : {Kernels::any, Kernels::avx2, Kernels::avx512}) EXPECT_EQ(fastest_kernels(most), most);
}

TEST(KernelChoiceDeath, OthersComeTooLate) {
  if (most_kernels() == Kernels::any) GTEST_SKIP() << "this CPU has one choice";
  EXPECT_DEATH((take_kernels(Kernels::any), take_kernels(Kernels::avx2)), "kernels for avx2 after any");
  EXPECT_DEATH((kernels(), take_kernels(Kernels::any)), "kernels for any after ");
}

TEST(KernelChoiceDeath, MoreThanTheCpuHas) {
  setenv("ONEDNN_MAX_CPU_ISA", "SSE41", 1);
  EXPECT_DEATH(take_kernels(Kernels::avx2), "kernels for avx2 after none, where any is the most");
  unsetenv("ONEDNN_MAX_CPU_ISA");
}

}  // namespace
}  // namespace prun::cpu
