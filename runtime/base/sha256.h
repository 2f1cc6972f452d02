// SHA-256 of bytes at once or in pieces, by OpenSSL's libcrypto.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace prun {

inline constexpr size_t kSha256Bytes = 32;

std::string sha256(std::string_view bytes);  // kSha256Bytes
std::string hex(std::string_view bytes);     // two digits per byte

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void add(const void* data, size_t bytes);
  std::string hex();  // 64 digits; ends the digest

 private:
  evp_md_ctx_st* context_;
};

}  // namespace prun
