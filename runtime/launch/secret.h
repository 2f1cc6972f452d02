// Secrets of a job: random bytes, and the MACs of the rendezvous, from OpenSSL's libcrypto.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

#include "base/sha256.h"

namespace prun {

std::string random_bytes(size_t count);  // reads them from the system; throws Error(join) on failure
std::string hmac_sha256(std::string_view key, std::string_view message);  // 32 bytes, RFC 2104
bool same_secret(std::string_view a, std::string_view b);                 // compares in constant time

}  // namespace prun
