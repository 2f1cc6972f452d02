// Reading, writing and closing of a connection. Only close_orderly blocks.
//
// A write error does not close a connection at once, because the peer's last frames, which state why it left, may still
// be unread.
#include "connection.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <prun/sdk/tcp_path.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace prun::socket {
namespace {

// Input buffer for one eager message, its header and preceding frames: copying them costs less than a second call.
constexpr size_t kInputRoom = 40 << 10;
// Only headers of large messages use the buffer; their pieces are read directly into the caller's memory.
constexpr size_t kBulkRoom = 4 * sizeof(FrameHeader);
thread_local std::array<char, kInputRoom> input;  // empty between turns; cut headers are stored in header_

// Flips a bit of the outgoing bytes: in the first header, or in its payload if that carries a CRC. The bit is near the
// front, because a full socket may accept no more.
char* turn_bit_over(const msghdr& message, uint64_t seed, bool payload_too) {
  const iovec& piece = message.msg_iov[payload_too ? seed % std::min<size_t>(message.msg_iovlen, 2) : 0];
  const size_t reach = std::min<size_t>(piece.iov_len, payload_too ? 4096 : sizeof(FrameHeader));
  char* const byte = static_cast<char*>(piece.iov_base) + (seed >> 8) % reach;
  *byte = static_cast<char>(*byte ^ 1 << (seed >> 32) % 8);
  return byte;
}

constexpr int kReadsPerTurn = 8;
constexpr auto kIdle = std::chrono::milliseconds(500);
constexpr uint64_t kWritePerTurn = 1 << 20;  // bytes; also the limit of one sendmsg
constexpr int kGoodbyeMilliseconds = 200;

}  // namespace

Connection::Connection(Descriptor socket, std::unique_ptr<sdk::TlsStream> tls, bool tcp, bool first, bool payload_crc,
                       Peer& peer, Matcher& matcher, Poller& poller)
    : socket_(std::move(socket)),
      tls_(std::move(tls)),
      ready_(tls_ == nullptr),
      tcp_(tcp),
      first_(first),
      payload_crc_(payload_crc),
      peer_(peer),
      matcher_(matcher),
      poller_(poller) {
  poller_.add(socket_.get(), this, EPOLLIN);
}

void Connection::on_event(uint32_t events) {
  if (!open()) return;
  if (events & ~static_cast<uint32_t>(EPOLLOUT)) {
    int reads = 0;
    while (reads < kReadsPerTurn && open() && read_once()) ++reads;
    while (tls_ && reads == kReadsPerTurn && open() && read_once(false)) {  // epoll ignores bytes that TLS buffers
    }
  }
  if (open() && (events & EPOLLOUT)) {
    watch_writable(false);
    matcher_.mark_dirty(peer_);
  }
}

bool Connection::read_now() {
  const uint32_t before = frames_read_;
  on_event(EPOLLIN);
  return frames_read_ != before;
}

void Connection::watch_writable(bool on) {
  if (blocked_ == on) return;
  blocked_ = on;
  poller_.modify(socket_.get(), this, EPOLLIN | (on ? static_cast<uint32_t>(EPOLLOUT) : 0u));
}

// ---- reading ----

bool Connection::read_once(bool fill) {
  iovec pieces[2];
  msghdr header{};
  header.msg_iov = pieces;
  size_t wanted = 0;
  const auto add = [&](char* to, size_t bytes) {
    pieces[header.msg_iovlen++] = {to, bytes};
    wanted += bytes;
  };
  // A payload without a destination goes through `input`, like headers.
  if (payload_left_ > 0 && landing_.to != nullptr) add(landing_.to, payload_left_);
  // In the middle of a large message only the next header follows, because the next piece belongs in the caller's
  // buffer.
  const bool more_follows = header.msg_iovlen > 0 && frame_.offset + frame_.length < frame_.total;
  const size_t room = more_follows ? sizeof(FrameHeader) : bulk_ ? kBulkRoom : kInputRoom;
  add(input.data() + cut_, room - cut_);
  const ssize_t got = receive(header, fill);
  if (got < 0) {
    if (errno == EINTR) return true;
    if (errno != EAGAIN)
      ended(errno);
    else if (write_error_ != 0)
      ended(write_error_);
    return false;
  }
  if (got == 0) {
    ended(0);
    return false;
  }
  try {
    take(static_cast<size_t>(got));
  } catch (const Failure& failure) {
    lost(failure);
  }
  return tls_ || static_cast<size_t>(got) == wanted;  // a short read has emptied the socket
}

// Reads into the pieces of `header`. TLS copies anyway, so it fills only the first piece.
ssize_t Connection::receive(msghdr& header, bool fill) {
  if (!tls_) return ::recvmsg(socket_.get(), &header, MSG_DONTWAIT);
  const ssize_t got = tls_->read(header.msg_iov[0].iov_base, header.msg_iov[0].iov_len, fill);
  const int why = errno;
  if (!ready_ && tls_->established()) {
    ready_ = true;
    matcher_.mark_dirty(peer_);
  }
  errno = why;
  return got;
}

void Connection::take(size_t bytes) {
  if (payload_left_ > 0 && landing_.to != nullptr) {
    const size_t part = std::min<uint64_t>(bytes, payload_left_);
    if (frame_.flags & kPayloadHasCrc) arriving_crc_ = crc32c(arriving_crc_, landing_.to, part);
    landing_.to += part;
    payload_left_ -= part;
    bytes -= part;
    if (payload_left_ == 0) end_frame();
  }
  if (bytes == 0) return;
  std::memcpy(input.data(), header_.data(), cut_);
  parse(input.data(), input.data() + std::exchange(cut_, 0) + bytes);
}

void Connection::parse(const char* from, const char* end) {
  while (open() && from < end) {
    const size_t have = static_cast<size_t>(end - from);
    if (payload_left_ > 0) {
      const size_t part = std::min<uint64_t>(have, payload_left_);
      if (frame_.flags & kPayloadHasCrc) arriving_crc_ = crc32c(arriving_crc_, from, part);
      if (landing_.to != nullptr) {
        std::memcpy(landing_.to, from, part);
        landing_.to += part;
      }
      from += part;
      payload_left_ -= part;
      if (payload_left_ == 0) end_frame();
      continue;
    }
    if (have < sizeof(FrameHeader)) {
      std::memcpy(header_.data(), from, have);
      cut_ = have;
      return;
    }
    FrameHeader header;
    std::memcpy(&header, from, sizeof header);
    from += sizeof header;
    begin_frame(header);
  }
}

void Connection::begin_frame(const FrameHeader& header) {
  if (header.header_crc != header.expected_crc() || header.number != frames_read_)
    throw Failure{PRUN_ECORRUPT, peer_.rank,
                  fmt::format("a frame header from rank #{} over {} is corrupted (frame {})", peer_.rank,
                              tcp_ ? "tcp" : "unix", frames_read_)};
  ++frames_read_;
  frame_ = header;
  arriving_crc_ = 0;
  landing_ = matcher_.arrive(peer_, header);
  payload_left_ = header.length;
  if (payload_left_ > 0) bulk_ = static_cast<FrameKind>(header.kind) == FrameKind::data;
  if (payload_left_ == 0) end_frame();
}

void Connection::end_frame() {
  if ((frame_.flags & kPayloadHasCrc) && arriving_crc_ != frame_.payload_crc)
    throw Failure{
        PRUN_ECORRUPT, peer_.rank,
        fmt::format(
            "{} bytes from rank #{} over {} are corrupted (lane {}, at byte {} of {}; CRC32C {:08x}, sent {:08x})",
            frame_.length, peer_.rank, tcp_ ? "tcp" : "unix", frame_.lane, frame_.offset, frame_.total, arriving_crc_,
            frame_.payload_crc)};
  matcher_.landed(peer_, frame_, landing_.message);
  landing_ = {};
}

// ---- writing ----

bool Connection::stage() {
  while (outgoing_.size() < kFrames && outgoing_bytes_ < kWritePerTurn) {
    OutFrame frame;
    if (!matcher_.next_frame(peer_, first_, &frame)) break;
    FrameHeader& header = frame.header;
    header.number = frames_written_++;
    if (payload_crc_ && header.length > 0) {
      header.flags |= kPayloadHasCrc;
      header.payload_crc = crc32c(0, frame.payload, header.length);
    }
    header.header_crc = header.expected_crc();
    outgoing_bytes_ += sizeof header + header.length;
    outgoing_.push_back(std::move(frame));
  }
  return !outgoing_.empty();
}

// Returns the bytes written; 0 = no output is left, or the socket is full.
uint64_t Connection::write_once() {
  if (!stage()) return 0;
  std::array<iovec, 2 * kFrames> pieces;
  msghdr message{};
  message.msg_iov = pieces.data();
  for (OutFrame& frame : outgoing_) {
    const uint64_t skip = frame.written;
    char* const header = reinterpret_cast<char*>(&frame.header);
    if (skip < sizeof frame.header) pieces[message.msg_iovlen++] = {header + skip, sizeof frame.header - skip};
    const uint64_t gone = skip > sizeof frame.header ? skip - sizeof frame.header : 0;
    if (frame.header.length > gone)
      pieces[message.msg_iovlen++] = {const_cast<char*>(frame.payload) + gone, frame.header.length - gone};
  }
  // A flipped bit in the remainder of a payload without a CRC would not be detected.
  const bool noticed = payload_crc_ || outgoing_.front().written < sizeof(FrameHeader);
  char* const flipped = flip_ && noticed ? turn_bit_over(message, *flip_, payload_crc_) : nullptr;
  ssize_t sent;
  do {
    sent = transmit(message);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0 && errno != EAGAIN) write_error_ = errno;
  if (flipped != nullptr) *flipped = static_cast<char>(*flipped ^ 1 << (*flip_ >> 32) % 8);
  if (sent > 0 && flipped != nullptr) flip_.reset();
  const bool full = tls_ ? sent < 0 : sent < static_cast<ssize_t>(outgoing_bytes_);
  if (full && write_error_ == 0) watch_writable(true);
  if (sent <= 0) return 0;
  written(static_cast<uint64_t>(sent));
  return static_cast<uint64_t>(sent);
}

void Connection::fill_when_idle(Clock::time_point now) {
  if (!tls_ || !ready_ || !open() || filled_ || !outgoing_.empty() || now - sent_at_ < kIdle) return;
  static const std::array<char, sdk::TlsStream::kFiller> nothing{};
  OutFrame& frame = outgoing_.emplace_back();
  frame.payload = nothing.data();
  frame.header.kind = static_cast<uint8_t>(FrameKind::filler);
  frame.header.length = nothing.size();
  frame.header.number = frames_written_++;
  frame.header.header_crc = frame.header.expected_crc();
  outgoing_bytes_ += sizeof frame.header + nothing.size();
  write_some();
  filled_ = true;
}

ssize_t Connection::transmit(const msghdr& message) {
  if (tls_) {
    filled_ = false;
    sent_at_ = Clock::now();
    return tls_->write({message.msg_iov, message.msg_iovlen});
  }
  return ::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void Connection::written(uint64_t bytes) {
  outgoing_bytes_ -= bytes;
  while (bytes > 0) {
    OutFrame& frame = outgoing_.front();
    const uint64_t size = sizeof frame.header + frame.header.length;
    const uint64_t part = std::min(bytes, size - frame.written);
    frame.written += part;
    bytes -= part;
    if (frame.written < size) return;
    matcher_.written(frame);
    outgoing_.pop_front();
  }
}

void Connection::write_some() {
  uint64_t total = 0;
  while (ready_ && open() && !blocked_ && write_error_ == 0 && total < kWritePerTurn) {
    const uint64_t bytes = write_once();
    if (bytes == 0) break;
    total += bytes;
  }
  if (total >= kWritePerTurn && !blocked_) matcher_.mark_dirty(peer_);
  while (write_error_ != 0 && open() && read_once()) {  // the peer's last frames; see the top of this file
  }
}

void Connection::forget(const Message* message) {
  if (landing_.message == message && message != nullptr) landing_ = {};
  for (OutFrame& frame : outgoing_) {
    if (frame.message != message) continue;
    frame.message = nullptr;
    frame.kept = std::make_unique_for_overwrite<char[]>(frame.header.length);
    if (frame.header.length > 0) std::memcpy(frame.kept.get(), frame.payload, frame.header.length);
    frame.payload = frame.kept.get();
  }
}

// ---- ends ----

void Connection::abandon(const Failure& failure) {
  if (!open()) return;
  poller_.remove(socket_.get());
  socket_.reset();
  landing_ = {};
  payload_left_ = 0;
  for (OutFrame& frame : std::exchange(outgoing_, {}))
    if (frame.message != nullptr) matcher_.fail(frame.message, failure);
}

// Reports corrupt input to the peer, so that it does not blame this rank for the failure.
void Connection::lost(const Failure& failure) {
  if (!ready_) return lost_early(failure.message);
  if (failure.status == PRUN_ECORRUPT) close_orderly(Goodbye::corrupt, peer_.rank, failure);
  matcher_.lost(peer_, failure);
}

// Records why a connection was lost before it was ready; the connector dials again.
void Connection::lost_early(std::string why) {
  trouble_ = std::move(why);
  abandon({});
}

void Connection::ended(int error) {
  if (!ready_)
    return lost_early(tls_->trouble().empty() ? std::string(error == 0 ? "it hung up" : std::strerror(error))
                                              : "TLS: " + tls_->trouble());
  if (tls_ && error == EBADMSG)
    return lost(
        {PRUN_ECORRUPT, peer_.rank,
         fmt::format("data of rank #{} was changed in transit over tcp (TLS: {})", peer_.rank, tls_->trouble())});
  const bool orderly = peer_.said_goodbye;
  if (error == 0 && peer_.connections.size() > 1) {
    // A peer closes all of its connections together; the others may still have unread frames.
    poller_.remove(socket_.get());
    socket_.reset();
    for (const auto& other : peer_.connections)
      if (other && other->open()) return;
  }
  Failure failure{PRUN_EPEER, peer_.rank, ""};
  const char* const via = tcp_ ? "tcp" : "unix";
  if (orderly && peer_.goodbye == Goodbye::closed) {
    failure.message = fmt::format("rank #{} has closed its side of the transport", peer_.rank);
  } else if ((tls_ && error == EREMOTEIO) || (orderly && peer_.goodbye == Goodbye::corrupt)) {
    failure.status = PRUN_ECORRUPT;
    failure.message = fmt::format("data from this rank to rank #{} over {} was corrupted", peer_.rank, via);
  } else if (orderly) {
    if (peer_.blamed >= 0) failure.culprit = peer_.blamed;
    failure.message = peer_.blamed >= 0 ? fmt::format("rank #{} is gone, as rank #{} found", peer_.blamed, peer_.rank)
                                        : fmt::format("rank #{} aborted", peer_.rank);
  } else {
    const bool large_lost = tcp_ && error == ETIMEDOUT && sdk::TcpPath(socket_.get()).loses_large_packets();
    failure.message = fmt::format("rank #{} is gone: its connection over {} {}{}{}", peer_.rank, via,
                                  error == 0 ? std::string("ended") : fmt::format("failed: {}", std::strerror(error)),
                                  large_lost ? "; " : "", large_lost ? sdk::kSmallMtu : "");
  }
  matcher_.lost(peer_, failure);
}

void Connection::disturb(prun_fault fault, uint64_t seed) {
  if (!open()) return;
  if (fault == PRUN_FAULT_FLIP && tls_ && !tls_->by_kernel()) return tls_->flip(seed);
  if (fault == PRUN_FAULT_FLIP) {
    flip_ = seed;
    return;
  }
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  if (tcp_)  // sends a reset
    (void)::connect(socket_.get(), &nobody, sizeof nobody);
  else
    ::shutdown(socket_.get(), SHUT_RDWR);
}

void Connection::close_orderly(Goodbye reason, int culprit, const Failure& failure) {
  if (!open()) return;
  poller_.remove(socket_.get());
  // A goodbye cannot be inserted into a partly written frame.
  const bool between_frames = !(tls_ && tls_->pending()) && (outgoing_.empty() || outgoing_.front().written == 0);
  if (first_ && ready_ && between_frames && write_error_ == 0) {
    FrameHeader goodbye;
    goodbye.kind = static_cast<uint8_t>(FrameKind::goodbye);
    goodbye.number = outgoing_.empty() ? frames_written_ : outgoing_.front().header.number;
    goodbye.total = static_cast<uint64_t>(reason);
    goodbye.culprit = culprit;
    goodbye.header_crc = goodbye.expected_crc();
    iovec piece{&goodbye, sizeof goodbye};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    (void)!transmit(message);
  }
  ::shutdown(socket_.get(), SHUT_WR);
  // Closing with unread input would make TCP reset the connection and discard undelivered output.
  const auto until = Clock::now() + std::chrono::milliseconds(kGoodbyeMilliseconds);
  for (int unsent = 1; unsent > 0 && Clock::now() < until;) {
    ssize_t got;
    do {
      got = ::recv(socket_.get(), input.data(), input.size(), MSG_DONTWAIT);
    } while (got > 0 && Clock::now() < until);
    const bool gone = got == 0 || errno != EAGAIN;
    if (!tcp_ || gone || ::ioctl(socket_.get(), SIOCOUTQ, &unsent) != 0) break;
    pollfd readable{socket_.get(), POLLIN, 0};
    if (unsent > 0) ::poll(&readable, 1, 1);
  }
  abandon(failure);
}

}  // namespace prun::socket
