// Fuzz targets for socket data that arrives before or without authentication.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "fuzz/target.h"
#include "launch/control.h"
#include "launch/failure.h"
#include "launch/handshake.h"
#include "prun/sdk/handshake.h"

namespace prun::fuzz {
namespace {

// A stream whose peer has sent the input and nothing else.
struct Sent {
  explicit Sent(std::string_view input) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    near = ends[0], far = ends[1];
    fcntl(far, F_SETFL, O_NONBLOCK);
    while (!input.empty()) {
      const ssize_t n = write(far, input.data(), input.size());
      if (n <= 0) break;  // the socket buffer is full
      input.remove_prefix(static_cast<size_t>(n));
    }
    shutdown(far, SHUT_WR);
  }
  ~Sent() { close(far); }
  int near, far;
};

}  // namespace

void read_frames(std::string_view input) {
  {
    const Sent sent(input);
    Channel channel{Fd(sent.near)};
    std::vector<Frame> frames;
    while (channel.receive(frames)) {
    }
    for (const Frame& frame : frames) {
      try {
        if (frame.kind == FrameKind::failure || frame.kind == FrameKind::verdict)
          render(unpack<Failure>(frame.payload));
        else if (frame.kind == FrameKind::gathered)
          unpack<std::vector<std::string>>(frame.payload);
        else
          Unpacker(frame.payload).number();
      } catch (const Error&) {
      }
    }
  }
  const Sent sent(input);
  Frame frame;
  while (receive_frame(sent.near, frame)) {
  }
  close(sent.near);
}

void read_hello(std::string_view input) {
  // Handshake of launchers.
  prun::Hello hello{};
  std::memcpy(&hello, input.data(), std::min(input.size(), sizeof hello));
  prun::Challenge challenge{};
  std::memcpy(challenge.magic, hello.magic, sizeof challenge.magic);
  const Admission admission = check_hello("secret", challenge, hello);
  if (admission == Admission::accepted) std::abort();  // accepted without the secret
  make_answer("secret", challenge, hello, admission, 2);
  // Handshake of transports, from both ends.
  prun_open_params params{};
  params.rank = 0;
  params.ranks = 4;
  std::memset(params.job_secret, 's', sizeof params.job_secret);
  std::strcpy(params.job_id, "job");
  const sdk::Identity identity(params);
  for (const int to : {-1, 1}) {
    const Sent sent(input);
    fcntl(sent.near, F_SETFL, O_NONBLOCK);
    sdk::Handshake handshake(sdk::Descriptor(sent.near), identity, to);
    for (int i = 0; i < 8 && handshake.advance() == sdk::Handshake::State::running; ++i) {
    }
    if (handshake.state() == sdk::Handshake::State::done) std::abort();
  }
}

}  // namespace prun::fuzz
