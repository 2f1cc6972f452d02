// A frame is a header of 16 bytes and its payload. Between launchers each of the two is followed by its own MAC,
// because a corrupted length must be detected before that many bytes are awaited.
#include "launch/control.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>

#include "base/error.h"
#include "launch/secret.h"

namespace prun {
namespace {

struct FrameHeader {
  uint32_t kind;
  int32_t rank;
  uint64_t bytes;
};
static_assert(sizeof(FrameHeader) == 16);

constexpr uint64_t kLargestFrame = uint64_t{1} << 32;
constexpr size_t kReadChunk = 64 * 1024;
constexpr size_t kCodeBytes = 16;  // length of the truncated HMAC-SHA256

bool interrupted_or_full(int error) { return error == EINTR || error == EAGAIN || error == EWOULDBLOCK; }

// Blocks until all bytes have arrived; returns false on end of file or error.
bool read_all(int fd, void* to, size_t bytes) {
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    ssize_t got = recv(fd, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= got;
  }
  return true;
}

}  // namespace

Packer& Packer::number(int64_t value) {
  bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  return *this;
}

Packer& Packer::text(std::string_view value) {
  number(static_cast<int64_t>(value.size()));
  bytes_.append(value);
  return *this;
}

std::string_view Unpacker::take(size_t count) {
  if (count > bytes_.size()) throw Error(Exit::join, "a message between launcher and rank is too short");
  std::string_view taken = bytes_.substr(0, count);
  bytes_.remove_prefix(count);
  return taken;
}

int64_t Unpacker::number() {
  int64_t value;
  std::memcpy(&value, take(sizeof value).data(), sizeof value);
  return value;
}

std::string Unpacker::text() {
  int64_t bytes = number();
  return std::string(take(bytes));
}

Channel::Channel(Fd fd) : fd_(std::move(fd)) {
  int flags = fcntl(fd_.get(), F_GETFL);
  fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK);
}

Channel::Channel(Fd fd, std::string send_key, std::string receive_key) : Channel(std::move(fd)) {
  send_key_ = std::move(send_key);
  receive_key_ = std::move(receive_key);
}

Channel::Channel(Fd fd, const std::string& key, sdk::TlsStream::Side side) : Channel(std::move(fd)) {
  PRUN_CHECK(key.size() == 32, "a key has 32 bytes");
  const auto* bytes = reinterpret_cast<const uint8_t*>(key.data());
  try {
    tls_ = std::make_unique<sdk::TlsStream>(fd_.get(), side, std::span<const uint8_t, 32>(bytes, 32));
  } catch (const sdk::Failure& failure) {
    throw Error(Exit::join, "--encrypt: " + failure.message);
  }
}

ssize_t Channel::put(const char* from, size_t bytes) {
  if (!tls_) return ::send(fd_.get(), from, bytes, MSG_NOSIGNAL);
  const iovec piece{const_cast<char*>(from), bytes};
  return tls_->write({&piece, 1});
}

ssize_t Channel::get(char* to, size_t bytes) {
  if (!tls_) return recv(fd_.get(), to, bytes, 0);
  const ssize_t got = tls_->read(to, bytes);
  if (got < 0 && errno == EBADMSG) trouble_ = fmt::format("a frame was changed on its way (TLS: {})", tls_->trouble());
  if (got < 0 && errno == EREMOTEIO)
    trouble_ = fmt::format("data was changed in transit to the peer (TLS: {})", tls_->trouble());
  return got;
}

// Headers have even numbers and payloads odd ones, so that neither can replace the other.
std::string Channel::code(bool ours, uint64_t number, std::string_view bytes) const {
  std::string counted(reinterpret_cast<const char*>(&number), sizeof number);
  return hmac_sha256(ours ? send_key_ : receive_key_, counted.append(bytes)).substr(0, kCodeBytes);
}

void Channel::send(FrameKind kind, int rank, std::string_view payload) {
  if (!open()) return;
  FrameHeader header{static_cast<uint32_t>(kind), rank, payload.size()};
  const std::string_view head(reinterpret_cast<const char*>(&header), sizeof header);
  out_.append(head);
  if (!send_key_.empty()) out_.append(code(true, 2 * frames_sent_, head));
  out_.append(payload);
  if (!send_key_.empty()) out_.append(code(true, 2 * frames_sent_ + 1, payload));
  ++frames_sent_;
  flush();
}

void Channel::flush() {
  while (wants_write()) {
    const ssize_t gone = put(out_.data() + sent_, out_.size() - sent_);
    if (gone < 0 && errno == EINTR) continue;
    if (gone < 0 && interrupted_or_full(errno)) return;
    if (gone < 0) break;  // the peer is gone
    sent_ += gone;
  }
  out_.clear();
  sent_ = 0;
}

bool Channel::receive(std::vector<Frame>& frames) {
  bool alive = open();
  while (alive) {
    size_t before = in_.size();
    in_.resize(before + kReadChunk);
    const ssize_t got = get(in_.data() + before, kReadChunk);
    in_.resize(before + (got > 0 ? got : 0));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && interrupted_or_full(errno)) break;
    if (got <= 0) alive = false;
  }
  if (tls_) flush();  // bytes that were queued during the TLS handshake
  size_t at = 0;
  while (take_frame(at, frames)) {
  }
  in_.erase(0, at);
  return alive && trouble_.empty();
}

// Returns false if the next frame is incomplete or the stream is broken.
bool Channel::take_frame(size_t& at, std::vector<Frame>& frames) {
  const std::string_view in = std::string_view(in_).substr(at);
  const size_t extra = receive_key_.empty() ? 0 : kCodeBytes, head = sizeof(FrameHeader) + extra;
  if (!trouble_.empty() || in.size() < head) return false;
  FrameHeader header;
  std::memcpy(&header, in.data(), sizeof header);
  const auto genuine = [&](std::string_view bytes, uint64_t number) {
    if (extra == 0) return true;
    if (same_secret(code(false, number, bytes), {bytes.data() + bytes.size(), extra})) return true;
    trouble_ = "a frame was changed on its way";
    return false;
  };
  if (!genuine(in.substr(0, sizeof header), 2 * frames_received_)) return false;
  if (header.bytes > kLargestFrame) {
    trouble_ = "a frame is too long";
    return false;
  }
  if (in.size() - head < header.bytes + extra) return false;
  if (!genuine(in.substr(head, header.bytes), 2 * frames_received_ + 1)) return false;
  ++frames_received_;
  frames.push_back({static_cast<FrameKind>(header.kind), header.rank, std::string(in.substr(head, header.bytes))});
  at += head + header.bytes + extra;
  return true;
}

void Channel::end_sending() {
  if (open()) shutdown(fd_.get(), SHUT_WR);
}

void keep_until_exit(Channel channel) {
  static std::vector<Channel> kept;
  kept.push_back(std::move(channel));
}

void wait_for_end(int fd, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  shutdown(fd, SHUT_WR);
  for (char unread[256];;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
    pollfd event{fd, POLLIN, 0};
    if (left <= 0 || poll(&event, 1, static_cast<int>(left)) <= 0 || recv(fd, unread, sizeof unread, 0) <= 0) return;
  }
}

bool send_frame(int fd, FrameKind kind, int rank, std::string_view payload) {
  FrameHeader header{static_cast<uint32_t>(kind), rank, payload.size()};
  iovec parts[2] = {{&header, sizeof header}, {const_cast<char*>(payload.data()), payload.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  size_t left = sizeof header + payload.size();
  while (left > 0) {
    ssize_t put = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    left -= put;
    for (iovec& part : parts) {
      size_t step = std::min(part.iov_len, static_cast<size_t>(put));
      part.iov_base = static_cast<char*>(part.iov_base) + step;
      part.iov_len -= step;
      put -= static_cast<ssize_t>(step);
    }
  }
  return true;
}

bool receive_frame(int fd, Frame& frame) {
  FrameHeader header;
  if (!read_all(fd, &header, sizeof header) || header.bytes > kLargestFrame) return false;
  frame.kind = static_cast<FrameKind>(header.kind);
  frame.rank = header.rank;
  frame.payload.clear();
  // Memory grows with the bytes that arrive, because the header's length is not trusted.
  constexpr uint64_t kMost = uint64_t{16} << 20;
  while (header.bytes > 0) {
    const size_t have = frame.payload.size(), more = std::min(header.bytes, kMost);
    frame.payload.resize(have + more);
    if (!read_all(fd, frame.payload.data() + have, more)) return false;
    header.bytes -= more;
  }
  return true;
}

}  // namespace prun
