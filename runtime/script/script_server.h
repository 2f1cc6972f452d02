// A process that has loaded lua/prun and forks a child for each script, because loading is most of a script's time.
#pragma once
#include <optional>
#include <string>

#include "base/child_process.h"
#include "script/script.h"

namespace prun {

// The end of a script's process.
struct ScriptEnd {
  std::string reply;  // see script/child.h
  int status = 0;     // as returned by waitpid
  double processor_seconds = 0;
};

// While it lives, run_script in this process uses it; forked processes do not. It serves processes that run several
// scripts.
class ScriptServer {
 public:
  // `lua_dir`: for all scripts. Does nothing in a process that already has a server.
  explicit ScriptServer(const std::string& lua_dir);
  ~ScriptServer();
  ScriptServer(const ScriptServer&) = delete;
  ScriptServer& operator=(const ScriptServer&) = delete;

  static ScriptServer* current();  // the server of this process, or null

  // Returns false if the request is too large or the server has died. `end` remains empty if the deadline passed; the
  // server has then ended, too.
  bool run(const ScriptOptions& options, const std::string& plan_file, ChildProcess::Clock::time_point deadline,
           std::optional<ScriptEnd>& end);

 private:
  void stop();

  std::optional<ChildProcess> process_;
  int socket_ = -1;
};

}  // namespace prun
