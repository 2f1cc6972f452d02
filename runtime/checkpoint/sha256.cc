#include "checkpoint/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include "base/error.h"

namespace prun::checkpoint {

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  PRUN_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) == 1, "");
}

Sha256::~Sha256() { EVP_MD_CTX_free(context_); }

void Sha256::add(const void* data, size_t bytes) {
  PRUN_CHECK(EVP_DigestUpdate(context_, data, bytes) == 1, std::to_string(bytes));
}

std::string Sha256::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int n = 0;
  PRUN_CHECK(EVP_DigestFinal_ex(context_, digest, &n) == 1, std::to_string(n));
  std::string text;
  for (unsigned int i = 0; i < n; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

}  // namespace prun::checkpoint
