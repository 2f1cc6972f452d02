// One authenticated stream socket to a peer: parses input into frames and writes the matcher's frames.
//
// A header and its payload are written by one sendmsg, several small frames together; one recvmsg reads a payload into
// the caller's buffer and the next header into a scratch buffer. Guarded by the context's lock.
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
  // `tls`: the TLS layer over the same socket; null = not encrypted.
  Connection(Descriptor socket, std::unique_ptr<sdk::TlsStream> tls, bool tcp, bool first, bool payload_crc, Peer& peer,
             Matcher& matcher, Poller& poller);

  void on_event(uint32_t events) override;
  bool read_now();  // reads available input; returns whether a frame arrived
  // Writes until the socket is full or kWritePerTurn bytes are written; in the latter case it marks the peer dirty
  // again.
  void write_some();
  // Sends one filler frame (TlsStream::kFiller) on an encrypted connection that has been idle.
  void fill_when_idle(Clock::time_point now);
  void forget(const Message* message);   // detaches the caller's memory after the request was dropped
  void abandon(const Failure& failure);  // closes; messages in transit fail
  // Sends a goodbye frame, which marks an orderly end, and closes. Waits at most 200 ms for TCP to deliver it.
  // Outgoing messages fail with `failure`.
  void close_orderly(Goodbye reason, int culprit, const Failure& failure = {PRUN_EABORTED, -1, "closed"});
  void disturb(prun_fault fault, uint64_t seed);  // fault injection for tests
  bool open() const { return static_cast<bool>(socket_); }
  bool ready() const { return ready_; }                    // the TLS handshake is over
  const std::string& trouble() const { return trouble_; }  // why the connection was lost before it was ready
  bool tcp() const { return tcp_; }

 private:
  static constexpr size_t kFrames = 32;  // frames per sendmsg

  bool read_once(bool fill = true);  // returns false if there is no more input for now
  ssize_t receive(msghdr& header, bool fill);
  ssize_t transmit(const msghdr& message);
  void take(size_t bytes);                        // handles `bytes` that recvmsg stored
  void parse(const char* from, const char* end);  // handles input that followed the payload
  void begin_frame(const FrameHeader& header);
  void end_frame();
  bool stage();  // fills outgoing_; returns false if there is no output
  uint64_t write_once();
  void written(uint64_t bytes);
  void lost(const Failure& failure);
  void lost_early(std::string why);
  void ended(int error);  // handles the end of the connection by the peer or the network; error 0 = end of stream
  void watch_writable(bool on);

  Descriptor socket_;
  std::unique_ptr<sdk::TlsStream> tls_;
  bool ready_;
  bool filled_ = true;           // no data was sent since the last filler
  Clock::time_point sent_at_{};  // last write of an encrypted connection
  std::string trouble_;
  const bool tcp_, first_, payload_crc_;
  Peer& peer_;
  Matcher& matcher_;
  Poller& poller_;

  // Reader state.
  FrameHeader frame_;  // the frame whose payload is arriving
  uint64_t payload_left_ = 0;
  Matcher::Landing landing_;  // advances with the payload
  uint32_t arriving_crc_ = 0;
  uint32_t frames_read_ = 0;
  bool bulk_ = false;  // the last payload belonged to a large message, so the next most likely does
  size_t cut_ = 0;     // bytes of an incomplete header
  std::array<char, sizeof(FrameHeader)> header_;

  // Writer state.
  std::deque<OutFrame> outgoing_;  // the first may be partly written
  uint64_t outgoing_bytes_ = 0;
  uint32_t frames_written_ = 0;
  bool blocked_ = false;          // the socket is full: waiting for EPOLLOUT
  std::optional<uint64_t> flip_;  // seed of a bit to flip, for fault injection
  int write_error_ = 0;           // errno of a write; reported only after all input of the peer was read
};

}  // namespace prun::socket
