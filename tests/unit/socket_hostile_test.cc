// Network faults and attacks against the socket plugin: strangers, a wrong secret, flipped bits, ranks of another job.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <prun/chaos.h>
#include <sys/socket.h>

#include <thread>

#include "plugins/socket/address.h"
#include "tests/unit/socket_world.h"

namespace {

using namespace socket_world;
using prun::socket::Address;

void expect_all_well(const std::vector<int>& ends) {
  for (size_t r = 0; r < ends.size(); ++r) EXPECT_EQ(ends[r], 0) << "rank " << r;
}

bool contains(const char* text, const char* part) { return std::strstr(text, part) != nullptr; }

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

uint16_t& port_of(Rank& me, int rank) { return reinterpret_cast<Address*>(me.shared->blobs[rank])->port; }

int dial(uint16_t port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(port);
  RANK_CHECK(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

// Forwards each incoming connection to `port`. Flips one bit, once, of byte `flip_at` in the stream towards the dialler
// (or the listener), and measures the longest run of zeros in that stream.
class FlippingProxy {
 public:
  FlippingProxy(uint16_t port, bool towards_dialler, size_t flip_at)
      : port_(port), towards_dialler_(towards_dialler), left_(static_cast<ssize_t>(flip_at)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in any = loopback(0);
    RANK_CHECK(::bind(listener_, reinterpret_cast<const sockaddr*>(&any), sizeof any) == 0 &&
               ::listen(listener_, 8) == 0);
    std::thread([this] {
      for (;;) {
        const int dialler = ::accept(listener_, nullptr, nullptr);
        forward(dialler, dial(port_));
      }
    }).detach();
  }
  size_t longest_zeros() const { return longest_; }
  uint16_t port() const {
    sockaddr_in bound{};
    socklen_t length = sizeof bound;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&bound), &length);
    return ntohs(bound.sin_port);
  }

 private:
  void forward(int dialler, int acceptor) {
    pollfd ends[2] = {{dialler, POLLIN, 0}, {acceptor, POLLIN, 0}};
    std::vector<char> data(64 << 10);
    for (;;) {
      ::poll(ends, 2, -1);
      for (int from = 0; from < 2; ++from) {
        if (ends[from].revents == 0) continue;
        const ssize_t n = ::recv(ends[from].fd, data.data(), data.size(), 0);
        if (n <= 0) {
          ::close(dialler);
          ::close(acceptor);
          return;
        }
        if ((from == 1) == towards_dialler_) {
          if (left_ >= 0 && left_ < n) data[static_cast<size_t>(left_)] ^= 4;
          left_ -= left_ >= 0 ? n : 0;
          for (ssize_t i = 0; i < n; ++i) {
            zeros_ = data[static_cast<size_t>(i)] == 0 ? zeros_ + 1 : 0;
            if (zeros_ > longest_) longest_ = zeros_;
          }
        }
        for (ssize_t sent = 0; sent < n;) {
          const ssize_t part =
              ::send(ends[1 - from].fd, data.data() + sent, static_cast<size_t>(n - sent), MSG_NOSIGNAL);
          if (part <= 0) break;
          sent += part;
        }
      }
    }
  }
  const uint16_t port_;
  const bool towards_dialler_;
  ssize_t left_;
  size_t zeros_ = 0;
  std::atomic<size_t> longest_{0};
  int listener_;
};

// Bytes of the handshake towards the dialler: hello and two MACs.
constexpr size_t kHandshake = 104 + 32 + 32;
constexpr size_t kHeader = 48;

// Upper bound for the bytes that TLS sends towards the dialler before the first frame.
constexpr size_t kTlsHandshake = 400;
constexpr const char* kPlain = "unix=0,crc=1";
constexpr const char* kEncrypted = "unix=0,encrypt=1";

struct Flip {
  const char* name;
  size_t at;
  const char* message;
  const char* options = kPlain;
};
class SocketFlip : public testing::TestWithParam<Flip> {};
INSTANTIATE_TEST_SUITE_P(
    Places, SocketFlip,
    testing::Values(Flip{"header", kHandshake + 9, "a frame header from rank #0 over tcp is corrupted"},
                    Flip{"small", kHandshake + kHeader + 999, "1000 bytes from rank #0 over tcp are corrupted"},
                    Flip{"large", kHandshake + 2 * kHeader + 1000 + (300 << 10),
                         "bytes from rank #0 over tcp are corrupted"},
                    Flip{"small_encrypted", kHandshake + kTlsHandshake + 300,
                         "data of rank #0 was changed in transit over tcp (TLS: ", kEncrypted},
                    Flip{"large_encrypted", kHandshake + kTlsHandshake + (300 << 10),
                         "data of rank #0 was changed in transit over tcp (TLS: ", kEncrypted}),
    [](const auto& test) { return test.param.name; });

TEST_P(SocketFlip, IsNeverDelivered) {
  expect_all_well(fork_ranks(2, GetParam().options, [&](Rank& me) {
    me.open();
    me.meet();
    if (me.rank == 1) port_of(me, 0) = (new FlippingProxy(port_of(me, 0), true, GetParam().at))->port();
    me.connect();
    const std::vector<char> zeros(1 << 20, 0);
    std::vector<char> small(1000, 1), large(1 << 20, 1);
    if (me.rank == 0) {
      prun_status status = me.wait(me.batch({send_op(1, zeros.data(), 1000), send_op(1, zeros.data(), 1 << 20)}));
      if (status == PRUN_OK) status = me.wait(me.batch({recv_op(1, small.data(), 1)}));  // the peer sends the reason
      RANK_CHECK(status == PRUN_ECORRUPT && me.result.culprit == 1, "status %d %s", status, me.result.message);
      RANK_CHECK(contains(me.result.message, "data from this rank to rank #1 over tcp was corrupted"), "%s",
                 me.result.message);
      me.meet();
      return;
    }
    prun_req* first = me.batch({recv_op(0, small.data(), 1000)});
    prun_req* second = me.batch({recv_op(0, large.data(), 1 << 20)});
    prun_status status = me.wait(first);
    if (status == PRUN_OK) {
      RANK_CHECK(std::memcmp(small.data(), zeros.data(), 1000) == 0);
      status = me.wait(second);
    }
    RANK_CHECK(status == PRUN_ECORRUPT && me.result.culprit == 0, "status %d %s", status, me.result.message);
    RANK_CHECK(contains(me.result.message, GetParam().message), "%s", me.result.message);
    me.meet();  // the proxy is a thread of this rank and must still forward the last frame
  }));
}

// Inside a host only headers have a checksum, over TCP and AF_UNIX.
TEST(SocketHostile, HeadersHaveACodeOnAHostToo) {
  expect_all_well(fork_ranks(2, "unix=0", [&](Rank& me) {
    me.open();
    me.meet();
    if (me.rank == 1) port_of(me, 0) = (new FlippingProxy(port_of(me, 0), true, kHandshake + 9))->port();
    me.connect();
    char byte = 1;
    if (me.rank == 0) {
      prun_status status = me.wait(me.batch({send_op(1, &byte, 1)}));
      if (status == PRUN_OK) status = me.wait(me.batch({recv_op(1, &byte, 1)}));
      RANK_CHECK(status == PRUN_ECORRUPT && me.result.culprit == 1, "status %d %s", status, me.result.message);
    } else {
      const prun_status status = me.wait(me.batch({recv_op(0, &byte, 1)}));
      RANK_CHECK(status == PRUN_ECORRUPT && me.result.culprit == 0, "status %d %s", status, me.result.message);
      RANK_CHECK(contains(me.result.message, "a frame header from rank #0 over tcp is corrupted"), "%s",
                 me.result.message);
    }
    me.meet();
  }));
}

// An injected flip hits a checked byte when payloads have no checksum.
TEST(SocketHostile, AFlippedBitIsFoundWithoutCodesOnPayloads) {
  for (const char* options : {"", "unix=0", "unix=0,crc=0", "unix=0,crc=1"}) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      expect_all_well(fork_ranks(2, options, [&](Rank& me) {
        me.start();
        std::vector<char> out(4 << 20, 1), in(4 << 20, 0);
        prun_status status = PRUN_OK;
        for (int call = 0; call < 40 && status == PRUN_OK; ++call) {
          prun_req* request =
              me.batch({recv_op(1 - me.rank, in.data(), in.size()), send_op(1 - me.rank, out.data(), out.size())});
          const auto* chaos = static_cast<const prun_chaos*>(load()->ext(PRUN_CHAOS));
          if (me.rank == 0 && call == 3) RANK_CHECK(chaos->disturb(me.ctx, PRUN_FAULT_FLIP, 1, seed) == 1);
          status = me.wait(request);
          if (status == PRUN_OK) RANK_CHECK(in == out, "call %d", call);
        }
        // The detecting rank may be inside a frame, where it cannot send a reason to its peer.
        RANK_CHECK(me.rank == 1 ? status == PRUN_ECORRUPT && me.result.culprit == 0 : status != PRUN_OK, "status %d %s",
                   status, me.result.message);
        me.meet();
      }));
    }
  }
}

TEST(SocketHostile, FlippedHandshakeIsTriedAgain) {
  for (const size_t at : {size_t{3}, size_t{80}, size_t{120}, kHandshake + 20, kHandshake + 180, kHandshake + 3}) {
    expect_all_well(fork_ranks(2, at < kHandshake ? kPlain : kEncrypted, [&](Rank& me) {
      me.open();
      me.meet();
      if (me.rank == 1) port_of(me, 0) = (new FlippingProxy(port_of(me, 0), true, at))->port();
      me.connect();
      int in = 0, out = 5 + me.rank;
      me.run({recv_op(1 - me.rank, &in, sizeof in), send_op(1 - me.rank, &out, sizeof out)});
      RANK_CHECK(in == 6 - me.rank);
    }));
  }
}

TEST(SocketHostile, WhoListensOnAnEncryptedLinkLearnsNothing) {
  for (const char* options : {kPlain, kEncrypted}) {
    expect_all_well(fork_ranks(2, options, [&](Rank& me) {
      me.open();
      me.meet();
      FlippingProxy* proxy = nullptr;
      if (me.rank == 1) {
        proxy = new FlippingProxy(port_of(me, 0), true, SIZE_MAX / 2);
        port_of(me, 0) = proxy->port();
      }
      me.connect();
      std::vector<char> data(1 << 20, 0);
      for (const size_t bytes : {size_t{1000}, data.size()})
        me.run({me.rank == 0 ? send_op(1, data.data(), bytes) : recv_op(0, data.data(), bytes)});
      if (proxy != nullptr)
        RANK_CHECK((proxy->longest_zeros() < 100) == (options == kEncrypted), "%zu zeros over %s",
                   proxy->longest_zeros(), options);
      me.meet();
    }));
  }
}

// The flipped record claims to be longer, and the sender has no more data.
TEST(SocketHostile, AFlippedLengthOfARecordIsFound) {
  expect_all_well(fork_ranks(2, kEncrypted, [&](Rank& me) {
    me.start();
    char data[1000] = "";
    if (me.rank == 0) {
      // Bit 4 of byte 3 of the record, the high byte of the length: TlsStream::flip derives byte and bit from one
      // number.
      constexpr uint64_t kRecord = kHeader + sizeof data + 22, kBit = 4 << 24;
      constexpr uint64_t kSeed = ((kBit / kRecord + 1) * kRecord + 3) << 8;
      const auto* chaos = static_cast<const prun_chaos*>(load()->ext(PRUN_CHAOS));
      RANK_CHECK(chaos->disturb(me.ctx, PRUN_FAULT_FLIP, 1, kSeed) == 1);
      me.wait(me.batch({send_op(1, data, sizeof data)}));
    }
    const prun_status status = me.wait(me.batch({recv_op(1 - me.rank, data, sizeof data)}));
    RANK_CHECK(status == PRUN_ECORRUPT && me.result.culprit == 1 - me.rank, "status %d %s", status, me.result.message);
    me.meet();
  }));
}

TEST(SocketHostile, StrangersAreTurnedAwayAndCounted) {
  expect_all_well(fork_ranks(2, "unix=0", [](Rank& me) {
    me.open();
    me.meet();
    if (me.rank == 1) {
      const std::vector<char> noise(500, 'G');
      for (int i = 0; i < 150; ++i) {
        const int fd = dial(port_of(me, 0));
        if (i % 3 == 1) (void)!::send(fd, noise.data(), noise.size(), MSG_NOSIGNAL);
        if (i % 3 == 2) ::close(fd);  // the others remain connected and send nothing
      }
    }
    me.meet();
    const auto begin = std::chrono::steady_clock::now();
    me.connect();
    RANK_CHECK(std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(1900));
    if (me.rank == 0) RANK_CHECK(contains(last_log.c_str(), "strangers turned away: 1"), "%s", last_log.c_str());
    int in = 0, out = 5 + me.rank;
    me.run({recv_op(1 - me.rank, &in, sizeof in), send_op(1 - me.rank, &out, sizeof out)});
    RANK_CHECK(in == 6 - me.rank);
  }));
}

TEST(SocketHostile, SilentStrangerIsDroppedAfterTwoSecondsAndTheMissingRankNamed) {
  expect_all_well(fork_ranks(2, "unix=0", [](Rank& me) {
    me.open();
    me.meet();
    if (me.rank == 0) {
      const prun_status status = me.try_connect(2.3);
      RANK_CHECK(status == PRUN_AGAIN && me.result.culprit == 1, "status %d", status);
      RANK_CHECK(
          std::string(me.result.message) == "connected to 0 of 1 peers; missing: rank #1; strangers turned away: 1",
          "%s", me.result.message);
      return;
    }
    const int fd = dial(port_of(me, 0));
    const auto begin = std::chrono::steady_clock::now();
    char byte;
    RANK_CHECK(::recv(fd, &byte, 1, 0) == 0);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    RANK_CHECK(seconds > 1.8 && seconds < 2.5, "%f s", seconds);
  }));
}

// The core of the unresponsive rank serves others first.
TEST(SocketHostile, WhereRanksShareCoresASilentOneIsWaitedForLonger) {
  expect_all_well(fork_ranks(2, "unix=0", [](Rank& me) {
    me.params.local_ranks = 4 * static_cast<int>(std::thread::hardware_concurrency());
    me.open();
    me.meet();
    if (me.rank == 0) {
      const prun_status status = me.try_connect(3);
      RANK_CHECK(status == PRUN_AGAIN, "status %d", status);
      RANK_CHECK(std::string(me.result.message) == "connected to 0 of 1 peers; missing: rank #1", "%s",
                 me.result.message);
    }
    const int fd = me.rank == 1 ? dial(port_of(me, 0)) : -1;
    me.meet();
    me.connect();
    ::close(fd);
  }));
}

TEST(SocketHostile, WrongSecretNeverGetsIn) {
  for (const char* options : {"", "unix=0"}) {
    expect_all_well(fork_ranks(2, options, [](Rank& me) {
      if (me.rank == 1) me.params.job_secret[31] ^= 1;
      me.open();
      me.meet();
      const prun_status status = me.try_connect(0.3);
      RANK_CHECK(status == PRUN_AGAIN, "status %d %s", status, me.result.message);
      if (me.rank == 1)
        RANK_CHECK(std::string(me.result.message) ==
                       "connected to 0 of 1 peers; missing: rank #0 (its proof of the job secret is wrong)",
                   "%s", me.result.message);
      me.meet();
    }));
  }
}

TEST(SocketHostile, OtherOptionsAreFoundWhileJoining) {
  expect_all_well(fork_ranks(2, "", [](Rank& me) {
    me.params.options = me.rank == 0 ? "" : "chunk=8192";
    me.open();
    me.meet();
    RANK_CHECK(me.try_connect(5) == PRUN_EINVAL && me.result.culprit == 1 - me.rank);
    RANK_CHECK(contains(me.result.message, "has other socket options than rank"), "%s", me.result.message);
    RANK_CHECK(contains(me.result.message, "chunk=8192"), "%s", me.result.message);
    me.meet();
  }));
}

TEST(SocketHostile, PeerThatDiedBeforeConnectingIsNamed) {
  for (const char* options : {"", "unix=0"}) {
    expect_all_well(fork_ranks(2, options, [](Rank& me) {
      me.open();
      if (me.rank == 0) me.close();
      me.meet();
      if (me.rank == 0) return;
      RANK_CHECK(me.try_connect(5) == PRUN_EPEER && me.result.culprit == 0, "%s", me.result.message);
      RANK_CHECK(contains(me.result.message, "rank #0 no longer listens"), "%s", me.result.message);
    }));
  }
}

}  // namespace
