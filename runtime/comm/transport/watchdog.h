// Ends the wait for a plugin's function that never returns: no deadline inside the calling thread could.
//
// Nobody reads a clock on the way into a plugin. A thread notes the function in a slot of its own, and the watchdog's
// thread looks a few times a second whether it has moved.
#pragma once
#include <functional>

namespace prun {

// On the stack around a call of a plugin's function; costs two stores. Inside another one, both calls count as the
// outer one once the inner one has returned.
class PluginCall {
 public:
  explicit PluginCall(const char* function);  // "test"
  ~PluginCall();
  PluginCall(const PluginCall&) = delete;
  PluginCall& operator=(const PluginCall&) = delete;

 private:
  const char* outer_;
};

// From now on `blocked` is called, once and by another thread, with the function that has not returned for `limit_s`.
// One watch per process: a second call replaces the first; null ends it.
void watch_plugin_calls(double limit_s, std::function<void(const char* function)> blocked);

}  // namespace prun
