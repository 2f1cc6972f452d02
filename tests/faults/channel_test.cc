// A launcher detects modified bytes from another launcher before it uses any of them.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "launch/control.h"

namespace prun {
namespace {

struct Link {
  Link() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    wire = Fd(ends[0]);
    to = Channel(Fd(ends[1]), "key of theirs", "key of ours");
  }
  // Returns the bytes that a launcher would send.
  static std::string stream(const std::vector<std::string>& payloads, const char* key = "key of ours") {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    Channel from(Fd(ends[0]), key, "key of theirs");
    for (const std::string& payload : payloads) from.send(FrameKind::line, 3, payload);
    std::string bytes(1 << 16, 0);
    bytes.resize(static_cast<size_t>(read(ends[1], bytes.data(), bytes.size())));
    close(ends[1]);
    return bytes;
  }
  bool receive(const std::string& bytes) {
    if (write(wire.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
    return to.receive(frames);
  }
  Fd wire;
  Channel to;
  std::vector<Frame> frames;
};

TEST(Channel, FramesArrive) {
  Link link;
  EXPECT_TRUE(link.receive(Link::stream({"one", "", "three"})));
  ASSERT_EQ(link.frames.size(), 3u);
  EXPECT_EQ(link.frames[2].payload, "three");
  EXPECT_EQ(link.frames[0].rank, 3);
}

TEST(Channel, EachBitThatIsTurnedOverIsFoundAtOnce) {
  const std::string good = Link::stream({"payload", "second"}), first = Link::stream({"payload"});
  for (size_t bit = 0; bit < 8 * first.size(); ++bit) {
    std::string bytes = good;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    Link link;
    EXPECT_FALSE(link.receive(bytes)) << "bit " << bit;
    EXPECT_TRUE(link.frames.empty()) << "bit " << bit;
    EXPECT_EQ(link.to.trouble(), "a frame was changed on its way") << "bit " << bit;
    EXPECT_FALSE(link.receive(good)) << "nothing is believed any more";
  }
}

TEST(Channel, FramesInAnotherOrderAreFound) {
  const std::string both = Link::stream({"one", "two"}), first = Link::stream({"one"});
  Link twice, swapped;
  EXPECT_FALSE(twice.receive(first + first));
  EXPECT_EQ(twice.frames.size(), 1u);
  EXPECT_FALSE(swapped.receive(both.substr(first.size()) + first));
  EXPECT_TRUE(swapped.frames.empty());
}

TEST(Channel, AnotherKeyIsFound) {
  Link link;
  EXPECT_FALSE(link.receive(Link::stream({"one"}, "key of theirs"))) << "what this end has sent itself, say";
}

}  // namespace
}  // namespace prun
