// Framed messages between a rank and its launcher (a socketpair) and between launchers (TCP).
//
// Surprising fact: the launcher never blocks on a socket, a rank always does: Channel queues what does not fit, while
// the free functions wait.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace prun {

enum class FrameKind : uint32_t {
  gather = 1,  // rank -> its launcher -> node 0: this rank's blob
  gathered,    // node 0 -> launcher -> rank: all blobs, packed with Packer
  line,        // rank -> its launcher -> node 0: a line for the user
  failed,      // rank -> its launcher: LauncherClient::fail
  ended,       // launcher -> node 0: this rank returned 0
  failure,     // launcher -> node 0: a Failure that it has seen
  job,         // node 0 -> launcher: the job, or why there is none
  verdict,     // node 0 -> launcher: the job has ended, with this Failure or none
};

struct Frame {
  FrameKind kind = FrameKind::line;
  int32_t rank = -1;
  std::string payload;
};

// A file descriptor that is closed with its owner.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { reset(); }
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() {
    int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

// Fields of a payload, in the byte order of the machine: prun joins machines of one byte order only, which the
// version in the hello of rendezvous.cc would reveal.
class Packer {
 public:
  Packer& number(int64_t value);
  Packer& text(std::string_view value);
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Throws Error(join) when the bytes end too early.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {}
  int64_t number();
  std::string text();

 private:
  std::string_view take(size_t count);
  std::string_view bytes_;
};

std::string pack_texts(const std::vector<std::string>& texts);
std::vector<std::string> unpack_texts(std::string_view bytes);

// The launcher's end: never blocks.
class Channel {
 public:
  Channel() = default;
  explicit Channel(Fd fd);  // makes it nonblocking
  int fd() const { return fd_.get(); }
  bool open() const { return static_cast<bool>(fd_); }
  bool wants_write() const { return open() && sent_ < out_.size(); }
  // Queues the frame and sends what fits. A peer that is gone is seen by receive.
  void send(FrameKind kind, int rank, std::string_view payload);
  void flush();
  // Appends the frames that have arrived; false when the peer has closed or the stream is broken.
  bool receive(std::vector<Frame>& frames);
  // The peer's reads end; what it still sends arrives.
  void end_sending();
  void close() { fd_.reset(); }

 private:
  Fd fd_;
  std::string in_, out_;
  size_t sent_ = 0;
};

// A rank's end: blocks. send_frame returns false and receive_frame too when the launcher is gone.
bool send_frame(int fd, FrameKind kind, int rank, std::string_view payload);
bool receive_frame(int fd, Frame& frame);

}  // namespace prun
