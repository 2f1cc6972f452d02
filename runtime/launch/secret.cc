// Wrappers of libcrypto. An empty key is allowed (loopback without a secret).
#include "launch/secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "base/error.h"

namespace prun {

std::string random_bytes(size_t count) {
  std::string bytes(count, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) != 1)
    throw Error(Exit::join, "the system gives no random bytes for the job's secret");
  return bytes;
}

std::string hmac_sha256(std::string_view key, std::string_view message) {
  unsigned char code[32];
  unsigned int bytes = sizeof code;
  const unsigned char* done =
      HMAC(EVP_sha256(), key.data(), key.size(), reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           code, &bytes);
  PRUN_CHECK(done && bytes == sizeof code, "HMAC");
  return std::string(reinterpret_cast<char*>(code), sizeof code);
}

bool same_secret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace prun
