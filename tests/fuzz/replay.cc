// Runs targets over the files of corpus and found with any compiler, so that former findings do not recur.
//
//     fuzz_replay [TARGET ..]
//     fuzz_replay --seed program|plan PLAN.lua FILE     writes a plan's document as an initial input
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

#include "compile/compile.h"
#include "fuzz/target.h"
#include "ir/plan_reader.h"
#include "script/script.h"

namespace prun::fuzz {
namespace {

namespace fs = std::filesystem;

int write_seed(const std::string& kind, const std::string& plan, const std::string& file) {
  ScriptOptions options;
  options.plan_path = plan;
  options.lua_dir = PRUN_LUA_DIR;
  options.world = 2;
  const std::string document = run_script(options).plan_cbor;
  std::ofstream out(file, std::ios::binary);
  out << (kind == "plan" ? document : serialize_job(compile(read_plan(document), CompileOptions{})));
  return out ? 0 : 1;
}

int replay(const std::string& name) {
  const Target* target = find_target(name);
  if (target == nullptr) {
    std::fprintf(stderr, "no target %s; there are: %s\n", name.c_str(), target_names().c_str());
    return 2;
  }
  int files = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (const char* folder : {"corpus", "found"}) {
    std::error_code none;
    for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(PRUN_FUZZ_DIR) / folder / name, none)) {
      std::ifstream in(entry.path(), std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(in), {}};
      std::fprintf(stderr, "%s\n", entry.path().c_str());  // the last line names a finding
      run_target(*target, bytes);
      ++files;
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("%-12s %3d inputs, %.2f s\n", name.c_str(), files, seconds);
  return files > 0 ? 0 : 1;
}

}  // namespace
}  // namespace prun::fuzz

int main(int argc, char** argv) {
  if (argc == 5 && std::strcmp(argv[1], "--seed") == 0) return prun::fuzz::write_seed(argv[2], argv[3], argv[4]);
  std::vector<std::string> names(argv + 1, argv + argc);
  if (names.empty()) {
    std::istringstream all(prun::fuzz::target_names());
    for (std::string name; all >> name;) names.push_back(name);
  }
  int worst = 0;
  for (const std::string& name : names) worst = std::max(worst, prun::fuzz::replay(name));
  return worst;
}
