#include "base/sha256.h"

#include <openssl/evp.h>

#include "base/error.h"

namespace prun {

std::string sha256(std::string_view bytes) {
  std::string digest(kSha256Bytes, '\0');
  const int done = EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), nullptr,
                              EVP_sha256(), nullptr);
  PRUN_CHECK(done == 1, std::to_string(bytes.size()));
  return digest;
}

std::string hex(std::string_view bytes) {
  static const char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) text += {kDigits[byte >> 4], kDigits[byte & 15]};
  return text;
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  PRUN_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) == 1, "");
}

Sha256::~Sha256() { EVP_MD_CTX_free(context_); }

void Sha256::add(const void* data, size_t bytes) {
  PRUN_CHECK(EVP_DigestUpdate(context_, data, bytes) == 1, std::to_string(bytes));
}

std::string Sha256::hex() {
  std::string digest(kSha256Bytes, '\0');
  PRUN_CHECK(EVP_DigestFinal_ex(context_, reinterpret_cast<unsigned char*>(digest.data()), nullptr) == 1, "");
  return prun::hex(digest);
}

}  // namespace prun
