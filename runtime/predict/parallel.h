// Maps a function over items in one process per core. Threads are no option, because a plan's script must not run next
// to threads.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace prun {

// Returns the results of `work` for 0 .. count-1, in this order. `lua_dir`: folder of the DSL, for the scripts that
// `work` runs. `progress` receives the number of finished items. An item's Error ends all processes and is thrown here,
// without its site, which its text contains.
std::vector<std::string> in_processes(int count, const std::string& lua_dir,
                                      const std::function<std::string(int item)>& work,
                                      const std::function<void(int done)>& progress);

}  // namespace prun
