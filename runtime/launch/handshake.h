// The fixed-size messages with which two launchers prove to each other that they know the secret.
//
//     node 0 -> member   Challenge   a nonce
//     member -> node 0   Hello       who it is, a nonce, HMAC(secret, "member" challenge hello)
//     node 0 -> member   Answer      accepted or why not, HMAC(secret, "head" challenge hello status)
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace prun {

inline constexpr uint32_t kRendezvousVersion = 4;

struct Challenge {
  char magic[8];
  uint32_t version;
  uint32_t byte_order;
  char nonce[32];
};

struct Hello {
  char magic[8];
  uint32_t version;
  uint32_t byte_order;
  uint32_t node, nnodes, nproc;
  uint32_t encrypts;  // 1: --encrypt
  char host[64];      // ends with 0
  char nonce[32];
  char mac[32];
};

enum class Admission : uint32_t {
  accepted,
  wrong_secret,
  other_version,
  other_nnodes,
  node_taken,
  bad_node,
  other_encryption
};

struct Answer {
  uint32_t status;  // Admission
  uint32_t nnodes;  // of node 0
  char mac[32];     // zero when the secret is wrong
};

Challenge make_challenge();
Hello make_hello(std::string_view secret, const Challenge& challenge, int node, int nnodes, int nproc,
                 std::string_view host, bool encrypts = false);
// Looks at magic, version and mac only.
Admission check_hello(std::string_view secret, const Challenge& challenge, const Hello& hello);
Answer make_answer(std::string_view secret, const Challenge& challenge, const Hello& hello, Admission status,
                   int nnodes);
bool answer_is_genuine(std::string_view secret, const Challenge& challenge, const Hello& hello, const Answer& answer);
// What the frames that follow are authenticated with, in one direction.
std::string frame_key(std::string_view secret, const Challenge& challenge, const Hello& hello, bool from_head);
// What they are encrypted with, where they are.
std::string encryption_key(std::string_view secret, const Challenge& challenge, const Hello& hello);
bool is_prun(const char (&magic)[8]);

// The bytes of a message, for sending and authenticating.
template <typename Message>
std::string_view bytes_of(const Message& message) {
  return {reinterpret_cast<const char*>(&message), sizeof message};
}

}  // namespace prun
