// Preflight: can this machine hold the ranks? Asked before any is started.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace prun {

// Bytes that processes may still take: the least of the machine and this process's cgroups (version 2). `root` is "/"
// except in tests.
int64_t available_memory(const std::string& root = "/");
int64_t total_memory();  // bytes of the machine

// Throws Error(out_of_memory) or Error(usage) when `ranks` processes cannot fit, whatever they run.
void check_machine(int ranks, size_t recorder_bytes, bool capture_output);

}  // namespace prun
