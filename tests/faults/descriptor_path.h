// The path of a descriptor, for preloaded libraries that fail calls by path.
#pragma once
#include <fmt/format.h>

#include <filesystem>
#include <string>

inline std::string descriptor_path(int fd) {
  std::error_code error;
  return std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd), error).string();
}
