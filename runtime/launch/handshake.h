// The fixed-size messages with which two launchers prove to each other that they have the secret.
//
//     node 0 -> member   Challenge   a nonce
//     member -> node 0   Hello       its place, a nonce, HMAC(secret, "member" challenge hello)
//     node 0 -> member   Answer      accepted or the reason, HMAC(secret, "head" challenge hello status)
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
  uint32_t nnodes;  // on node 0
  char mac[32];     // zero if the secret is wrong
};

Challenge make_challenge();
Hello make_hello(std::string_view secret, const Challenge& challenge, int node, int nnodes, int nproc,
                 std::string_view host, bool encrypts = false);
// Checks magic, version and MAC only.
Admission check_hello(std::string_view secret, const Challenge& challenge, const Hello& hello);
Answer make_answer(std::string_view secret, const Challenge& challenge, const Hello& hello, Admission status,
                   int nnodes);
bool answer_is_genuine(std::string_view secret, const Challenge& challenge, const Hello& hello, const Answer& answer);
// Returns the key that authenticates the subsequent frames in one direction.
std::string frame_key(std::string_view secret, const Challenge& challenge, const Hello& hello, bool from_head);
// Returns the key of encrypted connections.
std::string encryption_key(std::string_view secret, const Challenge& challenge, const Hello& hello);
bool is_prun(const char (&magic)[8]);

// Returns the bytes of a message, to send or authenticate them.
template <typename Message>
std::string_view bytes_of(const Message& message) {
  return {reinterpret_cast<const char*>(&message), sizeof message};
}

}  // namespace prun
