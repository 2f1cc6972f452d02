// Encrypted streams between ranks of a job: sent data arrive; strangers and flipped bits are rejected.
#include "launch/sealed_stream.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <mutex>

#include "base/error.h"
#include "launch/tcp.h"

namespace prun {
namespace {

RankPlace place_of(int rank, const std::string& secret = std::string(32, 's')) {
  RankPlace place;
  place.rank = rank;
  place.ranks = 2;
  place.job_id = "job";
  place.job_secret = secret;
  return place;
}

const auto kNever = [] { return false; };

// Replies to each message with its length.
void tell_lengths(SealedStream& stream) {
  for (std::string message; stream.receive(message);) stream.send(std::to_string(message.size()));
}

TEST(SealedStreamTest, CarriesMessagesOfAllLengths) {
  const SealedListener listener(place_of(1), "127.0.0.1", "", tell_lengths);
  SealedStream stream = dial(place_of(0), 1, listener.address(), kNever);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4096}, SealedStream::kMost}) {
    stream.send(std::string(bytes, 'x'));
    std::string answer;
    ASSERT_TRUE(stream.receive(answer));
    EXPECT_EQ(answer, std::to_string(bytes));
  }
}

TEST(SealedStreamTest, TakesAPortOfTheRange) {
  const SealedListener first(place_of(0), "127.0.0.1", "29710:29790", tell_lengths);
  const SealedListener second(place_of(0), "127.0.0.1", "29710:29790", tell_lengths);
  EXPECT_NE(first.address(), second.address());
}

TEST(SealedStreamTest, RefusesAnotherSecretAndAnotherRank) {
  std::atomic<int> served = 0;
  const SealedListener listener(place_of(1), "127.0.0.1", "", [&](SealedStream&) { ++served; });
  for (const auto& [place, to] : {std::pair{place_of(0, std::string(32, 'x')), 1}, std::pair{place_of(0), 2}}) {
    SealedStream stream = dial(place, to, listener.address(), kNever);
    std::string answer;
    bool open = false;
    EXPECT_NO_THROW({
      try {
        open = stream.receive(answer);
      } catch (const Error& error) {  // connection reset
        EXPECT_EQ(error.code(), Exit::corrupt_link);
      }
    });
    EXPECT_FALSE(open);
  }
  EXPECT_EQ(served, 0);
}

TEST(SealedStreamTest, StrangersWhoSayNothingKeepNobodyOut) {
  const SealedListener listener(place_of(1), "127.0.0.1", "", tell_lengths);
  Unpacker unpacker(listener.address());
  HostPort at;
  at.host = unpacker.text();
  at.port = unpacker.text();
  std::vector<Fd> silent;
  for (int i = 0; i < 20; ++i) {
    std::string why;
    silent.push_back(connect_to(at, std::chrono::seconds(5), &why));
  }
  SealedStream stream = dial(place_of(0), 1, listener.address(), kNever);
  stream.send("four");
  std::string answer;
  ASSERT_TRUE(stream.receive(answer));
  EXPECT_EQ(answer, "4");
}

// Two ends over a socket pair, so that a byte can be changed in between.
TEST(SealedStreamTest, ABitThatIsTurnedOverIsFound) {
  const std::string ours(32, 'a'), theirs(32, 'b');
  for (const size_t place : {size_t{0}, size_t{4}, size_t{10}, size_t{23}}) {
    int first[2], second[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, first), 0);
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, second), 0);
    const Fd tap(first[1]), put(second[0]);
    SealedStream sender(Fd(first[0]), ours, theirs, kNever), receiver(Fd(second[1]), theirs, ours, kNever);
    sender.send("four");
    char bytes[24];
    ASSERT_EQ(recv(tap.get(), bytes, sizeof bytes, MSG_WAITALL), 24);
    bytes[place] = static_cast<char>(bytes[place] ^ 1);
    ASSERT_EQ(send(put.get(), bytes, sizeof bytes, 0), 24);
    shutdown(put.get(), SHUT_WR);
    std::string message;
    EXPECT_THROW(receiver.receive(message), Error) << "byte " << place;
  }
}

TEST(SealedStreamTest, EndsWhenItIsNotNeededAnyMore) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const Fd other(ends[1]);
  SealedStream stream(Fd(ends[0]), std::string(32, 'a'), std::string(32, 'b'), [] { return true; });
  std::string message;
  EXPECT_THROW(stream.receive(message), Error);
}

}  // namespace
}  // namespace prun
