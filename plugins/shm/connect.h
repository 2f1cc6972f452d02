// How ranks of one host find each other's memory: descriptors over abstract Unix sockets.
//
// The address blob names the host (boot id and network namespace, in which abstract names live) and a socket with a
// random name. The higher rank connects to the lower one. SO_PEERCRED must show the same user, and both sides prove
// with an HMAC over both nonces that they know the job's secret before a descriptor moves. The sockets stay open:
// their end is how a rank's death is noticed.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "context.h"

namespace prun::shm {

class Connector {
 public:
  explicit Connector(Context& context);
  ~Connector();
  Connector(const Connector&) = delete;
  // Listens and fills the blob. May be called again: the blob is the same.
  prun_status address(void* blob, size_t* bytes, prun_result* result);
  // One round without blocking.
  prun_status connect(const void* const* blobs, const size_t* bytes, prun_result* result);

 private:
  struct Blob;
  struct Message;
  struct Link;
  enum class Step { greet_sent, greeted, offered, done, dropped };

  prun_status start(const void* const* blobs, const size_t* bytes, prun_result* result);
  prun_status dial(int peer, const Blob& blob, prun_result* result);
  void accept_all();
  prun_status advance(Link& link, prun_result* result);
  prun_status take_greeting(Link& link, const Message& m);
  prun_status take_reply(Link& link, const Message& m, prun_result* result);
  prun_status take_offer(Link& link, const Message& m, const std::vector<int>& fds, prun_result* result);
  bool send_offer(Link& link);
  std::array<uint8_t, 32> proof(const Link& link, char role) const;
  void drop(Link& link, const char* why);

  Context& c_;
  int listener_ = -1;
  std::unique_ptr<Blob> mine_;
  bool started_ = false;
  std::vector<Link> links_;
};

}  // namespace prun::shm
