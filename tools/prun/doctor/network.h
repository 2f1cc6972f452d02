// What checks of one host and of several ask about networks.
#pragma once
#include <cstdint>
#include <string>

namespace prun::doctor {

int64_t mtu_of(const std::string& interface);  // -1: unknown
std::string host_name();

}  // namespace prun::doctor
