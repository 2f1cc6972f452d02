// Detects a plugin's function that never returns, which no deadline inside the calling thread could.
//
// A call into a plugin reads no clock. The calling thread stores the function in its own slot, and the watchdog's
// thread checks four times per second whether the slot has changed.
#pragma once
#include <functional>

namespace prun {

// Lives on the stack around a call of a plugin's function; costs two stores. If calls nest, the time of the outer one
// restarts when the inner one begins.
class PluginCall {
 public:
  explicit PluginCall(const char* function);  // "test"
  ~PluginCall();
  PluginCall(const PluginCall&) = delete;
  PluginCall& operator=(const PluginCall&) = delete;

 private:
  const char* outer_;
};

// From now on calls `blocked` once, on another thread, with the function that has not returned for `limit_s`. A process
// has one watch: a second call replaces the first; null ends it.
void watch_plugin_calls(double limit_s, std::function<void(const char* function)> blocked);

}  // namespace prun
