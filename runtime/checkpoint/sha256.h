// SHA-256 of bytes that come in pieces.
#pragma once
#include <memory>
#include <string>

struct evp_md_ctx_st;

namespace prun::checkpoint {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void add(const void* data, size_t bytes);
  std::string hex();  // 64 digits; ends the sum

 private:
  evp_md_ctx_st* context_;
};

}  // namespace prun::checkpoint
