// Defines options on a command's CLI::App, one call an option: which commands take it, name, value, target, help.
#pragma once
#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace prun {

// Commands as bits, for options that several take.
enum Commands : unsigned {
  kRun = 1,
  kCheck = 2,
  kDump = 4,
  kPlans = 8,
  kPlugins = 16,
  kDoctor = 32,
  kConform = 64,
  kBench = 128,
  kCkpt = 256,
  kRuns = 512,
  kGenerate = 1024,
  kInit = 1 << 20,
  kVersion = 1 << 21,
  kCompletion = 1 << 22,
  kMan = 1 << 23,
  kExplain = 2048,
  kStatus = 4096,
  kClean = 8192,
  kDraw = 1 << 15,
  kSim = 16384,
  kDiff = 1 << 16,
  kCalibrate = 1 << 19,
  kTune = 1 << 17,
  kAllCommands = (1 << 24) - 1
};

class Definer {
 public:
  using Read = std::function<void(const std::string& text)>;  // throws usage_error

  Definer(CLI::App& app, unsigned command) : app_(app), command_(command) {}
  void flag(unsigned commands, const char* name, bool& value, const char* help);
  void text(unsigned commands, const char* name, const char* unit, std::string& value, const char* help);
  void whole(unsigned commands, const char* name, const char* unit, int& value, int least, const char* help);
  // `many`: may be given several times.
  void parsed(unsigned commands, const char* name, const char* unit, Read read, const char* help, bool many = false);

 private:
  CLI::App& app_;
  unsigned command_;
};

}  // namespace prun
