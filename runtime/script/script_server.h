// A process that has loaded lua/prun and forks a child for each script: most of what scripts take is to load it.
#pragma once
#include <optional>
#include <string>

#include "base/child_process.h"
#include "script/script.h"

namespace prun {

// How a script's process ended.
struct ScriptEnd {
  std::string reply;  // see script/child.h
  int status = 0;     // as waitpid says it
  double processor_seconds = 0;
};

// While it lives, run_script of this process uses it. For those who run several scripts; in forked processes it does
// not count.
class ScriptServer {
 public:
  // `lua_dir`: of all its scripts. Does nothing in a process that has one.
  explicit ScriptServer(const std::string& lua_dir);
  ~ScriptServer();
  ScriptServer(const ScriptServer&) = delete;
  ScriptServer& operator=(const ScriptServer&) = delete;

  static ScriptServer* current();  // of this process, or null

  // False: it takes no such request, or has died. `end` stays empty where the deadline came first; the server has ended
  // then, too.
  bool run(const ScriptOptions& options, const std::string& plan_file, ChildProcess::Clock::time_point deadline,
           std::optional<ScriptEnd>& end);

 private:
  void stop();

  std::optional<ChildProcess> process_;
  int socket_ = -1;
};

}  // namespace prun
