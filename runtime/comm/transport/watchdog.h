// Who is inside a plugin, and for how long: a function that never returns must not stop the clock that would say so.
//
// Surprising fact: nobody looks at a clock on the way in. A thread notes where it is in memory of its own, and one more
// thread looks a few times a second whether it has moved.
#pragma once
#include <functional>
#include <string>

namespace prun {

// On the stack around a call of a plugin's function; costs two stores.
class InPlugin {
 public:
  explicit InPlugin(const char* function);  // "test"
  ~InPlugin();
  InPlugin(const InPlugin&) = delete;
  InPlugin& operator=(const InPlugin&) = delete;

 private:
  const char* outer_;  // a call inside a call counts as the outer one afterwards
};

// From now on `blocked` is called, once and by another thread, with the function that has not returned for `limit_s`.
// One watch a process: a second call replaces the first; null ends it.
void watch_plugin_calls(double limit_s, std::function<void(const char* function)> blocked);

}  // namespace prun
