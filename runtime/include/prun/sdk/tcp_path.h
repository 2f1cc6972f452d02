// Signs of a network that loses packets silently, from the kernel's statistics of a TCP socket. They are read by
// offset, because glibc's tcp_info ends too early and linux/tcp.h cannot be included beside netinet/tcp.h.
#pragma once
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>

namespace prun::sdk {

// The first 128 bytes of Linux's tcp_info.
struct TcpPath {
  static constexpr int kTcpInfo = 11;  // the option TCP_INFO

  explicit TcpPath(int fd) {
    socklen_t bytes = sizeof info_;
    if (::getsockopt(fd, IPPROTO_TCP, kTcpInfo, info_, &bytes) != 0) bytes = 0;
    known_ = bytes == sizeof info_;
  }
  // A connection is requested and nothing answers, not even a refusal.
  bool is_unanswered() const { return known_ && info_[0] == 2; }  // TCP_SYN_SENT
  // Data were sent again, and no packet of full size was ever acknowledged: a smaller MTU on the way drops them.
  bool loses_large_packets() const {
    return known_ && at<uint32_t>(100) > 0 &&
           at<uint64_t>(120) < at<uint32_t>(16);  // total_retrans, bytes_acked, snd_mss
  }

 private:
  template <class Number>
  Number at(size_t offset) const {
    Number number;
    std::memcpy(&number, info_ + offset, sizeof number);
    return number;
  }
  unsigned char info_[128] = {};
  bool known_ = false;
};

inline constexpr const char* kSmallMtu =
    "no packet of full size has arrived there: an MTU on the way may be too small (prun doctor tests it)";

}  // namespace prun::sdk
