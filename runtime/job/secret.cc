#include "job/secret.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "base/error.h"

namespace prun {
namespace {

constexpr const char* kVariable = "PRUN_SECRET";

std::string& hidden() {
  static std::string secret;
  return secret;
}

}  // namespace

void hide_secret() {
  char* value = std::getenv(kVariable);
  if (value == nullptr) return;
  hidden() = value;
  explicit_bzero(value, std::strlen(value));  // the kernel shows this memory as the process's environment
  unsetenv(kVariable);
}

std::string read_secret(const std::string& secret_file) {
  if (secret_file.empty()) return hidden();
  struct stat status {};
  if (stat(secret_file.c_str(), &status) == 0 && S_ISREG(status.st_mode) && (status.st_mode & 077) != 0)
    throw usage_error(fmt::format("--secret-file {}: others than its owner may use it (mode {:03o}): chmod 600 {}",
                                  secret_file, status.st_mode & 0777, secret_file));
  std::ifstream file(secret_file);
  if (!file) throw usage_error(fmt::format("--secret-file {}: {}", secret_file, std::strerror(errno)));
  std::string secret;
  if (!std::getline(file, secret) || secret.empty()) throw usage_error("no secret in " + secret_file);
  return secret;
}

}  // namespace prun
