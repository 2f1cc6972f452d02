// One authenticated stream socket to a peer: cuts what arrives into frames, writes what the matcher has to say.
//
// A header and its payload leave in one sendmsg, several small frames together; a payload arrives in the caller's
// buffer and the next header beside it in one recvmsg. Guarded by the context's lock.
#pragma once
#include <prun/chaos.h>
#include <prun/sdk/tls.h>
#include <sys/socket.h>

#include <array>
#include <deque>
#include <optional>

#include "match.h"
#include "poller.h"

namespace prun::socket {

class Connection : public EventSource {
 public:
  // `tls`: over the same socket, where it is encrypted.
  Connection(Descriptor socket, std::unique_ptr<sdk::TlsStream> tls, bool tcp, bool first, bool payload_crc,
             uint32_t chunk, Peer& peer, Matcher& matcher, Poller& poller);

  void on_event(uint32_t events) override;
  bool read_now();  // what there is; true: a frame has come
  // Writes what there is until the socket is full or a fair share has gone; then it marks the peer dirty again.
  void write_some();
  // Where it is encrypted and nothing was sent for a while: bytes that mean nothing, once (TlsStream::kFiller).
  void fill_when_idle(Clock::time_point now);
  void forget(const Message* message);   // its request is dropped: the caller's memory is off limits
  void abandon(const Failure& failure);  // closes; what was being moved fails
  // Last words, then an end that the peer can tell from a crash. Waits at most 200 ms for TCP to deliver. What was
  // being sent fails with `failure`.
  void close_orderly(Goodbye reason, int culprit, const Failure& failure = {PRUN_EABORTED, -1, "closed"});
  void disturb(prun_fault fault, uint64_t seed);  // for tests
  bool open() const { return static_cast<bool>(socket_); }
  bool ready() const { return ready_; }                    // the handshake of TLS is over; lost before that: dial again
  const std::string& trouble() const { return trouble_; }  // why it was lost before
  bool tcp() const { return tcp_; }

 private:
  static constexpr size_t kFrames = 32;  // of one sendmsg

  bool read_once(bool fill = true);  // false: nothing more for now
  ssize_t receive(msghdr& header, bool fill);
  ssize_t transmit(const msghdr& message);
  void take(size_t bytes);                        // bytes that recvmsg placed
  void parse(const char* from, const char* end);  // what came beside the payload
  void begin_frame(const FrameHeader& header);
  void end_frame();
  bool stage();  // fills outgoing_; false: nothing to write
  uint64_t write_once();
  void written(uint64_t bytes);
  void lost(const Failure& failure);
  void lost_early(std::string why);
  void ended(int error);  // by the peer or the network; 0: end of stream
  void watch_writable(bool on);

  Descriptor socket_;
  std::unique_ptr<sdk::TlsStream> tls_;
  bool ready_;
  bool filled_ = true;           // nothing was sent since the last filler
  Clock::time_point sent_at_{};  // where it is encrypted
  std::string trouble_;
  const bool tcp_, first_, payload_crc_;
  const uint32_t chunk_;
  Peer& peer_;
  Matcher& matcher_;
  Poller& poller_;

  // Reading.
  FrameHeader frame_;  // whose payload is arriving
  uint64_t payload_left_ = 0;
  Matcher::Landing landing_;  // advances
  uint32_t arriving_crc_ = 0;
  uint32_t frames_read_ = 0;
  bool bulk_ = false;  // the last payload was a piece of a large message: so is the next, most likely
  size_t cut_ = 0;     // bytes of a header whose rest has not come
  std::array<char, sizeof(FrameHeader)> header_;

  // Writing.
  std::deque<OutFrame> outgoing_;  // the first may be partly written
  uint64_t outgoing_bytes_ = 0;
  uint32_t frames_written_ = 0;
  bool blocked_ = false;          // the socket is full: waiting for EPOLLOUT
  std::optional<uint64_t> flip_;  // seed of a bit to turn over
  int write_error_ = 0;           // told only after everything that the peer had sent was read
};

}  // namespace prun::socket
