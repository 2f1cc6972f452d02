// The same work on many items, in as many processes as there are cores: a plan's script must not run beside threads.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace prun {

// `lua_dir`: of the scripts that `work` runs. What `work` returns for 0 .. count-1, in this order. `progress` gets how
// many are done. An Error of an item ends all and is thrown here, without its place, which its text has.
std::vector<std::string> in_processes(int count, const std::string& lua_dir,
                                      const std::function<std::string(int item)>& work,
                                      const std::function<void(int done)>& progress);

}  // namespace prun
