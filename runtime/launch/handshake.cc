// Both nonces enter both MACs, so neither an old hello nor an old answer can be replayed.
#include "launch/handshake.h"

#include <algorithm>
#include <cstring>

#include "launch/secret.h"

namespace prun {
namespace {

constexpr char kMagic[] = "prun-rdv";
constexpr uint32_t kByteOrder = 0x01020304;

void fill(char (&to)[32], const std::string& bytes) { std::memcpy(to, bytes.data(), sizeof to); }

std::string member_code(std::string_view secret, const Challenge& challenge, const Hello& hello) {
  std::string_view unsigned_part = bytes_of(hello).substr(0, sizeof hello - sizeof hello.mac);
  return hmac_sha256(secret, std::string("member").append(bytes_of(challenge)).append(unsigned_part));
}

std::string head_code(std::string_view secret, const Challenge& challenge, const Hello& hello, const Answer& answer) {
  std::string_view unsigned_part = bytes_of(answer).substr(0, sizeof answer - sizeof answer.mac);
  return hmac_sha256(secret,
                     std::string("head").append(bytes_of(challenge)).append(bytes_of(hello)).append(unsigned_part));
}

}  // namespace

bool is_prun(const char (&magic)[8]) { return std::memcmp(magic, kMagic, sizeof magic) == 0; }

Challenge make_challenge() {
  Challenge challenge{};
  std::memcpy(challenge.magic, kMagic, sizeof challenge.magic);
  challenge.version = kRendezvousVersion;
  challenge.byte_order = kByteOrder;
  fill(challenge.nonce, random_bytes(sizeof challenge.nonce));
  return challenge;
}

Hello make_hello(std::string_view secret, const Challenge& challenge, int node, int nnodes, int nproc,
                 std::string_view host, bool encrypts) {
  Hello hello{};
  std::memcpy(hello.magic, kMagic, sizeof hello.magic);
  hello.version = kRendezvousVersion;
  hello.byte_order = kByteOrder;
  hello.node = static_cast<uint32_t>(node);
  hello.nnodes = static_cast<uint32_t>(nnodes);
  hello.nproc = static_cast<uint32_t>(nproc);
  hello.encrypts = encrypts ? 1 : 0;
  std::memcpy(hello.host, host.data(), std::min(host.size(), sizeof hello.host - 1));
  fill(hello.nonce, random_bytes(sizeof hello.nonce));
  fill(hello.mac, member_code(secret, challenge, hello));
  return hello;
}

Admission check_hello(std::string_view secret, const Challenge& challenge, const Hello& hello) {
  if (!is_prun(hello.magic) || hello.version != kRendezvousVersion || hello.byte_order != kByteOrder)
    return Admission::other_version;
  bool genuine = same_secret({hello.mac, sizeof hello.mac}, member_code(secret, challenge, hello));
  return genuine ? Admission::accepted : Admission::wrong_secret;
}

Answer make_answer(std::string_view secret, const Challenge& challenge, const Hello& hello, Admission status,
                   int nnodes) {
  Answer answer{};
  answer.status = static_cast<uint32_t>(status);
  answer.nnodes = static_cast<uint32_t>(nnodes);
  if (status != Admission::wrong_secret && status != Admission::other_version)
    fill(answer.mac, head_code(secret, challenge, hello, answer));
  return answer;
}

bool answer_is_genuine(std::string_view secret, const Challenge& challenge, const Hello& hello, const Answer& answer) {
  return same_secret({answer.mac, sizeof answer.mac}, head_code(secret, challenge, hello, answer));
}

std::string frame_key(std::string_view secret, const Challenge& challenge, const Hello& hello, bool from_head) {
  return hmac_sha256(secret, std::string(from_head ? "frames of head" : "frames of member")
                                 .append(bytes_of(challenge))
                                 .append(bytes_of(hello)));
}

std::string encryption_key(std::string_view secret, const Challenge& challenge, const Hello& hello) {
  return hmac_sha256(secret, std::string("encryption").append(bytes_of(challenge)).append(bytes_of(hello)));
}

}  // namespace prun
