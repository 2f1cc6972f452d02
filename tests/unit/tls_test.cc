// The TLS stream between two ends of a socket pair: plaintext arrives unchanged, and modified records are rejected.
#include "prun/sdk/tls.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <numeric>
#include <string>

#include "prun/sdk/descriptor.h"

namespace prun::sdk {
namespace {

constexpr std::array<uint8_t, 32> kKey = {1, 2, 3};
constexpr std::array<uint8_t, 32> kOther = {3, 2, 1};

class TlsTest : public testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    for (int i : {0, 1}) ends[i] = Descriptor(fds[i]);
  }
  void begin(const std::array<uint8_t, 32>& other = kKey) {
    server = std::make_unique<TlsStream>(ends[1].get(), TlsStream::Side::server, other);
    client = std::make_unique<TlsStream>(ends[0].get(), TlsStream::Side::client, kKey);
  }
  // Both ends read until the handshake has succeeded or failed.
  void shake_hands() {
    char nothing[1];
    for (int turn = 0; turn < 10 && !(client->established() && server->established()); ++turn)
      for (TlsStream* end : {server.get(), client.get()}) (void)end->read(nothing, 1);
  }
  static ssize_t put(TlsStream& to, const std::string& text, size_t from = 0) {
    const iovec piece{const_cast<char*>(text.data()) + from, text.size() - from};
    return to.write({&piece, 1});
  }
  // Transfers all of `text`, reading at most `at_once` bytes at a time.
  static std::string move(TlsStream& from, TlsStream& to, const std::string& text, size_t at_once) {
    std::string got;
    std::string room(at_once, '\0');
    for (size_t sent = 0; got.size() < text.size();) {
      if (sent < text.size())
        if (const ssize_t put_now = put(from, text, sent); put_now > 0) sent += static_cast<size_t>(put_now);
      const ssize_t count = to.read(room.data(), room.size());
      if (count > 0) got.append(room, 0, static_cast<size_t>(count));
      if (count == 0 || (count < 0 && errno != EAGAIN)) break;
    }
    return got;
  }

  Descriptor ends[2];
  std::unique_ptr<TlsStream> client, server;
};

std::string numbers(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * i / 7);
  return text;
}

TEST_F(TlsTest, WhatGoesInComesOut) {
  begin();
  shake_hands();
  ASSERT_TRUE(client->established() && server->established()) << client->trouble() << server->trouble();
  for (const size_t bytes : {1, 47, 16383, 16384, 16385, 1 << 20, 3'000'001}) {
    const std::string text = numbers(bytes);
    EXPECT_EQ(move(*client, *server, text, 40'000), text) << bytes;
    EXPECT_EQ(move(*server, *client, text, 1 << 20), text) << bytes;
  }
}

TEST_F(TlsTest, PiecesAreOneStream) {
  begin();
  shake_hands();
  const std::string text = numbers(200'000);
  std::vector<iovec> pieces;
  for (size_t at = 0, size = 1; at < text.size(); at += size, size = size * 3 % 20'011 + 1)
    pieces.push_back({const_cast<char*>(text.data()) + at, std::min(size, text.size() - at)});
  size_t done = 0;
  std::string got, room(text.size(), '\0');
  while (got.size() < text.size()) {
    if (const ssize_t put_now = done < text.size() ? client->write(pieces) : 0; put_now > 0) {
      done += static_cast<size_t>(put_now);
      for (size_t left = static_cast<size_t>(put_now); left > 0;) {
        const size_t part = std::min(left, pieces.front().iov_len);
        pieces.front().iov_base = static_cast<char*>(pieces.front().iov_base) + part;
        left -= part;
        if ((pieces.front().iov_len -= part) == 0) pieces.erase(pieces.begin());
      }
    }
    const ssize_t count = server->read(room.data(), room.size());
    ASSERT_TRUE(count > 0 || errno == EAGAIN);
    if (count > 0) got.append(room, 0, static_cast<size_t>(count));
  }
  EXPECT_EQ(got, text);
}

// Bytes already taken from the socket can be read without accessing it again.
TEST_F(TlsTest, WithoutFillingItReadsWhatIsHere) {
  begin();
  shake_hands();
  const std::string text = numbers(60'000);
  ASSERT_EQ(put(*client, text), static_cast<ssize_t>(text.size()));
  char room[1000];
  EXPECT_EQ(server->read(room, sizeof room, false), -1);
  EXPECT_EQ(errno, EAGAIN);
  size_t got = static_cast<size_t>(server->read(room, sizeof room));
  ASSERT_EQ(put(*client, text), static_cast<ssize_t>(text.size()));
  for (ssize_t count; (count = server->read(room, sizeof room, false)) > 0;) got += static_cast<size_t>(count);
  EXPECT_EQ(got, text.size());
}

TEST_F(TlsTest, KeysAreRenewed) {
  begin();
  shake_hands();
  client->renew_keys_every(3);
  const std::string text = numbers(5'000'000);
  EXPECT_EQ(move(*client, *server, text, 1 << 20), text);
}

TEST_F(TlsTest, AnotherKeyIsRefusedByBoth) {
  begin(kOther);
  shake_hands();
  EXPECT_FALSE(client->established());
  EXPECT_FALSE(server->established());
  EXPECT_NE(server->trouble(), "");
}

TEST_F(TlsTest, WhatIsNoTlsIsRefused) {
  server = std::make_unique<TlsStream>(ends[1].get(), TlsStream::Side::server, kKey);
  const std::string plain = "prunhi01 and so on, which is no record of TLS";
  ASSERT_GT(::send(ends[0].get(), plain.data(), plain.size(), 0), 0);
  char room[10];
  EXPECT_EQ(server->read(room, sizeof room), -1);
  EXPECT_EQ(errno, EBADMSG);
  EXPECT_NE(server->trouble(), "");
}

TEST_F(TlsTest, AFlippedBitIsFoundByOneAndToldToTheOther) {
  for (const uint64_t seed : {uint64_t{0x1'0000'0305}, uint64_t{0x5'0012'3407}, uint64_t{0x5'0000'0300}}) {
    SetUp();
    begin();
    shake_hands();
    client->flip(seed);
    const std::string text = numbers(3000);
    ASSERT_EQ(put(*client, text), 3000);
    char room[4000];
    errno = 0;
    ssize_t got = server->read(room, sizeof room);
    if (got < 0 && errno == EAGAIN) {  // the record's length was increased
      ASSERT_GT(put(*client, numbers(TlsStream::kFiller)), 0);
      got = server->read(room, sizeof room);
    }
    EXPECT_EQ(got, -1);
    EXPECT_EQ(errno, EBADMSG);
    EXPECT_EQ(client->read(room, sizeof room), -1);
    EXPECT_EQ(errno, EREMOTEIO) << client->trouble();
    EXPECT_TRUE(server->established());  // a failed handshake is retried, and this one did not fail
    EXPECT_TRUE(client->established());
  }
}

TEST_F(TlsTest, AnEndIsAnEnd) {
  begin();
  shake_hands();
  const std::string text = "last words";
  ASSERT_EQ(put(*client, text), static_cast<ssize_t>(text.size()));
  client.reset();
  ends[0].reset();
  char room[100];
  EXPECT_EQ(server->read(room, sizeof room), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(server->read(room, sizeof room), 0);
  EXPECT_LT(put(*server, text), 0);  // and raises no signal
}

}  // namespace
}  // namespace prun::sdk
