// prun: the launcher and its commands. Errors end here, as one message and an exit code.
#include <fmt/format.h>
#include <spdlog/cfg/env.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "base/error.h"
#include "build_job.h"
#include "options.h"

namespace prun {
namespace {

// OpenMP threads spin for milliseconds by default while they wait, which costs a loaded machine most of its time. The
// library reads the limit when it is loaded, before main: so this process executes itself once more.
void limit_spinning(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("GOMP_SPINCOUNT", "2000", 1);  // a few microseconds
  std::error_code error;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  execv(program.c_str(), argv);  // returns only on failure; then kernels spin longer
}

int dispatch(int argc, char** argv) {
  Options options = parse_options({argv + 1, argv + argc});
  const bool has_plan = !options.plan.empty() && options.command != "conform";
  if (options.help && !has_plan) {
    fmt::print("{}", usage(options));
    return 0;
  }
  find_installation(options);
  if (!options.help) return run_chosen_command(options);
  print_plan_help(options);
  return 0;
}

}  // namespace
}  // namespace prun

int main(int argc, char** argv) {
  prun::limit_spinning(argv);
  // Standard output carries only what the user asked for: plans' prints, --json.
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::stderr_color_sink_mt>()));
  spdlog::cfg::load_env_levels();  // SPDLOG_LEVEL=debug
  try {
    return prun::dispatch(argc, argv);
  } catch (const prun::Error& error) {
    fmt::print(stderr, "prun: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "prun: {}\n", error.what());
    return static_cast<int>(prun::Exit::usage);
  }
}
