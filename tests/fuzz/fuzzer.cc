// libFuzzer's entry: PRUN_FUZZ_TARGET names the target. Built with clang only.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "fuzz/target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const prun::fuzz::Target* const target = [] {
    const char* name = std::getenv("PRUN_FUZZ_TARGET");
    const prun::fuzz::Target* found = prun::fuzz::find_target(name == nullptr ? "" : name);
    if (found == nullptr) {
      std::fprintf(stderr, "PRUN_FUZZ_TARGET is one of: %s\n", prun::fuzz::target_names().c_str());
      std::exit(2);
    }
    return found;
  }();
  prun::fuzz::run_target(*target, {reinterpret_cast<const char*>(data), size});
  return 0;
}
