// Framed messages between a rank and its launcher (a socketpair) and between launchers (TCP).
//
// The launcher never blocks on a socket, so Channel queues the bytes that do not fit. A rank always blocks in the free
// functions.
#pragma once
#include <prun/sdk/descriptor.h>
#include <prun/sdk/tls.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/named_field.h"

namespace prun {

enum class FrameKind : uint32_t {
  gather = 1,  // rank -> its launcher -> node 0: this rank's blob
  gathered,    // node 0 -> launcher -> rank: all blobs, packed with Packer
  line,        // rank -> its launcher -> node 0: a line for the user
  failed,      // rank -> its launcher: LauncherClient::fail
  bystander,   // rank -> its launcher: LauncherClient::end_with_others
  ended,       // launcher -> node 0: this rank returned 0, or stopped early as requested
  failure,     // launcher -> node 0: a Failure that it has detected
  job,         // node 0 -> launcher: the job, or the reason for its absence
  stop,        // launcher -> node 0 -> launchers: early end because of this signal or (rank kForNodes) of late nodes
  begun,       // launcher -> node 0: the last step that its ranks have begun
  steps,       // node 0 -> launcher: number of steps in the job
  mirror,      // launcher -> node 0: state of a rank (LaunchObserver::mirror)
  output,      // launcher -> node 0: bytes that a rank wrote to its standard output or error
  ask_waits,   // node 0 -> launchers: requests RankWaits, because a rank has made no progress for too long
  waits,       // launcher -> node 0: the RankWaits of its ranks (blame.h)
  verdict,     // node 0 -> launcher: the job has ended, with this Failure or none
  settings,    // launcher -> node 0, before the job: its NodeSettings
  alive,       // between launchers, twice a second: heartbeat
  pause,       // launcher -> node 0 -> launchers: SIGTSTP (rank field 1) or SIGCONT (0): ranks stop or continue
  inventory,   // launcher -> node 0, before its settings: its LaunchOptions::inventory
  kept,        // launcher -> node 0: the newest commit of which all its ranks hold their part
  committed,   // node 0 -> launchers: the newest commit of which all ranks hold their part
  late,        // node 0 -> launcher, before the job: the job runs without this node and admits it at a commit
  abandon,     // rank -> its launcher -> node 0: LauncherClient::abandon
  abandoned,   // node 0 -> launchers: the step of an abandoned checkpoint
};

struct Frame {
  FrameKind kind = FrameKind::line;
  int32_t rank = -1;
  std::string payload;
};

using Fd = sdk::Descriptor;

// Serializes the fields of a payload in native byte order; the hello (handshake.h) rejects machines of another byte
// order. A struct lists its fields once for both directions, with names (base/named_field.h) or without: template
// <class F> void each_field(F&& f) { f(a, b, c); }
class Packer {
 public:
  Packer& number(int64_t value);
  Packer& text(std::string_view value);
  std::string take() { return std::move(bytes_); }

  template <class... T>
  void operator()(const T&... fields) {
    (put(fields), ...);
  }

 private:
  template <std::integral T>
  void put(T value) {
    number(static_cast<int64_t>(value));
  }
  void put(const std::string& value) { text(value); }
  template <class T>
  void put(const NamedField<T>& field) {
    put(field.value);
  }
  template <class T>
  void put(const std::optional<T>& value) {
    number(value ? 1 : 0);
    if (value) put(*value);
  }
  template <class T>
  requires std::is_enum_v<T>
  void put(T value) { number(static_cast<int64_t>(value)); }
  template <class T>
  void put(const std::vector<T>& items) {
    number(std::ssize(items));
    for (const T& item : items) put(item);
  }
  template <class T>
  requires std::is_class_v<T>
  void put(const T& value) { each_field_of(value, *this); }
  std::string bytes_;
};

// Reads fields in the order in which Packer wrote them. Throws Error(join) if the bytes end too early.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {}
  int64_t number();
  std::string text();

  template <class... T>
  void operator()(T&&... fields) {
    (get(fields), ...);
  }

 private:
  template <std::integral T>
  void get(T& value) {
    value = static_cast<T>(number());
  }
  template <class T>
  requires std::is_enum_v<T>
  void get(T& value) { value = static_cast<T>(number()); }
  void get(std::string& value) { value = text(); }
  template <class T>
  void get(NamedField<T>& field) {
    get(field.value);
  }
  template <class T>
  void get(std::optional<T>& value) {
    if (number() != 0) get(value.emplace());
  }
  template <class T>
  void get(std::vector<T>& items) {
    for (int64_t left = number(); left > 0; --left) get(items.emplace_back());
  }
  template <class T>
  requires std::is_class_v<T>
  void get(T& value) { value.each_field(*this); }
  std::string_view take(size_t count);
  std::string_view bytes_;
};

template <class T>
std::string pack(const T& value) {
  Packer packer;
  packer(value);
  return packer.take();
}

template <class T>
T unpack(std::string_view bytes) {
  T value;
  Unpacker unpacker(bytes);
  unpacker(value);
  return value;
}

// The launcher's end of a stream; never blocks.
class Channel {
 public:
  Channel() = default;
  explicit Channel(Fd fd);  // sets it nonblocking
  // Between launchers: each frame carries MACs of its header and payload, numbered and keyed, which `receive` checks.
  Channel(Fd fd, std::string send_key, std::string receive_key);
  // Between launchers with encryption: TLS with this key, as its client or server; TLS records carry their own MACs.
  Channel(Fd fd, const std::string& key, sdk::TlsStream::Side side);
  int fd() const { return fd_.get(); }
  bool open() const { return static_cast<bool>(fd_); }
  bool encrypted() const { return tls_ != nullptr; }
  bool wants_write() const { return open() && sent_ < out_.size(); }
  // Queues the frame and sends the bytes that fit. `receive` reports a lost peer.
  void send(FrameKind kind, int rank, std::string_view payload);
  void flush();
  // Appends the frames that have arrived. Returns false if the peer has closed or the stream is broken.
  bool receive(std::vector<Frame>& frames);
  // Returns the reason why the stream is broken ("a frame was changed on its way"); "": the peer has closed.
  const std::string& trouble() const { return trouble_; }
  // Shuts down the sending direction; frames that the peer still sends arrive.
  void end_sending();
  void close() { fd_.reset(); }

 private:
  ssize_t get(char* to, size_t bytes);
  ssize_t put(const char* from, size_t bytes);
  std::string code(bool ours, uint64_t number, std::string_view bytes) const;
  bool take_frame(size_t& at, std::vector<Frame>& frames);

  Fd fd_;
  std::unique_ptr<sdk::TlsStream> tls_;
  std::string send_key_, receive_key_;  // both empty: frames carry no MACs
  uint64_t frames_sent_ = 0, frames_received_ = 0;
  std::string trouble_;
  std::string in_, out_;
  size_t sent_ = 0;
};

// Keeps the channel open until this process exits, so that the peer's wait_for_end returns after its last message.
void keep_until_exit(Channel channel);
// Returns when the process at the other end has exited, or after `seconds`.
void wait_for_end(int fd, double seconds);

// A rank's end; both block, and return false if the launcher is gone.
bool send_frame(int fd, FrameKind kind, int rank, std::string_view payload);
bool receive_frame(int fd, Frame& frame);

}  // namespace prun
