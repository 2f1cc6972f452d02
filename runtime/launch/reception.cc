#include "launch/reception.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/text.h"

namespace prun {
namespace {

constexpr ptrdiff_t kMostGuests = 256;  // unauthenticated connections
constexpr int kAcceptAtOnce = 64;

int milliseconds_until(Reception::Clock::time_point when) {
  auto left = std::chrono::ceil<std::chrono::milliseconds>(when - Reception::Clock::now()).count();
  return static_cast<int>(std::clamp<long>(left, 0, 1000));
}

}  // namespace

Reception::Reception(const LaunchOptions& options, const std::string& host)
    : options_(options),
      meeting_(options),
      listener_(meeting_.listen()),
      members_(options.nnodes - 1),
      places_(options.nnodes) {
  places_[0] = {host, 0, options.nproc};
}

int Reception::ranks() const {
  int sum = places_[0].ranks;
  for (size_t i = 0; i < members_.size(); ++i)
    if (is_in(members_[i])) sum += places_[i + 1].ranks;
  return sum;
}

void Reception::serve(Clock::time_point until) {
  std::vector<pollfd> polls;
  polls.push_back({listener_.get(), POLLIN, 0});
  for (const Newcomer& member : members_)
    polls.push_back({member.channel.open() ? member.channel.fd() : -1, POLLIN, 0});
  for (const Guest& guest : guests_) {
    polls.push_back({guest.fd.get(), POLLIN, 0});
    until = std::min(until, guest.deadline);
  }
  if (poll(polls.data(), polls.size(), milliseconds_until(until)) < 0) return;
  size_t at = 1;
  for (Newcomer& member : members_)
    if (polls[at++].revents) listen_to(member);
  Clock::time_point now = Clock::now();
  std::vector<Guest> staying;
  for (Guest& guest : guests_) {
    bool stays = !polls[at++].revents || hear(guest);
    if (stays && now >= guest.deadline) stranger(guest.fd.get(), "said nothing in time"), stays = false;
    if (stays) staying.push_back(std::move(guest));
  }
  guests_ = std::move(staying);
  if (polls[0].revents) accept_guests();
}

// Drops the oldest unauthenticated connections, so that a flood of connections cannot keep nodes out.
void Reception::accept_guests() {
  for (int count = 0; count < kAcceptAtOnce; ++count) {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) break;
    if (!meeting_.admits(fd.get())) {
      stranger(fd.get(), "is a process of another user");
      continue;
    }
    set_tcp_options(fd.get(), options_.link_timeout_s);
    Guest guest{std::move(fd), Clock::now() + kHandshake, make_challenge(), ""};
    std::string_view challenge = bytes_of(guest.challenge);
    send(guest.fd.get(), challenge.data(), challenge.size(), MSG_NOSIGNAL);  // fits into any socket's buffer
    guests_.push_back(std::move(guest));
  }
  if (guests_.size() <= kMostGuests) return;
  const auto staying = guests_.end() - kMostGuests;
  for (auto guest = guests_.begin(); guest != staying; ++guest)
    stranger(guest->fd.get(), "was silent while others came");
  guests_.erase(guests_.begin(), staying);
}

// Before the job a member sends its inventory and settings only. One that has closed may join again.
void Reception::listen_to(Newcomer& member) {
  std::vector<Frame> frames;
  bool stays = member.channel.receive(frames);
  for (const Frame& frame : frames) try {
      if (frame.kind == FrameKind::inventory) member.inventory = frame.payload;
      if (frame.kind == FrameKind::settings) member.settings = unpack<std::vector<NodeSetting>>(frame.payload);
    } catch (const Error&) {
      stays = false;
    }
  if (!stays) member = {};
}

bool Reception::hear(Guest& guest) {
  char bytes[sizeof(Hello)];
  ssize_t got = recv(guest.fd.get(), bytes, sizeof bytes - guest.received.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got <= 0) {
    stranger(guest.fd.get(), "left without a hello");
    return false;
  }
  guest.received.append(bytes, got);
  if (guest.received.size() < sizeof(Hello)) return true;
  Hello hello;
  std::memcpy(&hello, guest.received.data(), sizeof hello);
  admit(guest, hello);
  return false;
}

void Reception::admit(Guest& guest, const Hello& hello) {
  Admission status = check_hello(secret(), guest.challenge, hello);
  uint32_t nnodes = static_cast<uint32_t>(options_.nnodes);
  if (status == Admission::accepted) {
    if (hello.nnodes != nnodes)
      status = Admission::other_nnodes;
    else if (hello.node < 1 || hello.node >= nnodes || hello.nproc < 1)
      status = Admission::bad_node;
    else if (members_[hello.node - 1].channel.open() || members_[hello.node - 1].handed_over)
      status = Admission::node_taken;
    else if ((hello.encrypts == 1) != options_.encrypt)
      status = Admission::other_encryption;
  }
  Answer answer = make_answer(secret(), guest.challenge, hello, status, options_.nnodes);
  std::string_view bytes = bytes_of(answer);
  send(guest.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  static constexpr const char* kWhy[] = {
      // by Admission
      "",
      "has another secret",
      "is another version of prun",
      "has another --nnodes",
      "has a --node-rank that has joined already",
      "has a --node-rank that is not one",
      "encrypts otherwise",
  };
  const std::string host(hello.host, strnlen(hello.host, sizeof hello.host));
  if (status == Admission::other_encryption && !running_) {
    const std::string why =
        fmt::format("node {} ({}) has {}--encrypt and node 0 has {}: give all nodes the same", hello.node, host,
                    options_.encrypt ? "no " : "", options_.encrypt ? "it" : "not");
    refuse_all(static_cast<int>(Exit::usage), why);
    throw usage_error(why);
  }
  if (status != Admission::accepted) return stranger(guest.fd.get(), kWhy[static_cast<int>(status)]);
  places_[hello.node] = {host, 0, static_cast<int>(hello.nproc)};
  Channel& channel = members_[hello.node - 1].channel;
  if (options_.encrypt && !on_one_host(options_))
    channel =
        Channel(std::move(guest.fd), encryption_key(secret(), guest.challenge, hello), sdk::TlsStream::Side::server);
  else
    channel = Channel(std::move(guest.fd), frame_key(secret(), guest.challenge, hello, true),
                      frame_key(secret(), guest.challenge, hello, false));
}

void Reception::stranger(int fd, const char* why) {
  ++strangers_;
  last_stranger_ = fmt::format("{} {}", peer_name(fd), why);
}

std::string Reception::missing() const {
  std::vector<std::string> nodes;
  for (size_t i = 0; i < members_.size(); ++i)
    if (!is_in(members_[i])) nodes.push_back(fmt::format("node {}", i + 1));
  return join(nodes, ", ");
}

std::string Reception::turned_away() const {
  return strangers_ > 0 ? fmt::format("; {} turned away, the last: {}", strangers_, last_stranger_) : "";
}

std::string Reception::unfit(size_t member) const {
  const Newcomer& who = members_[member];
  if (!is_in(who)) return "";
  const std::string name = fmt::format("node {} ({})", member + 1, places_[member + 1].host);
  const std::string differs = difference(options_.settings, *who.settings, name);
  if (!differs.empty() || !options_.lacks) return differs;
  const std::string lacks = options_.lacks(who.inventory);
  return lacks.empty() ? "" : name + " " + lacks;
}

void Reception::refuse_all(int code, const std::string& why) {
  JobOffer offer;
  offer.error_code = code;
  offer.error = why;
  close(offer);
}

JoinedNodes Reception::hand_over() {
  running_ = true;
  JoinedNodes result;
  result.secret = secret();
  std::vector<NodePlace> places = places_;
  int first = 0;
  for (size_t node = 0; node < places.size(); ++node) {
    NodePlace& place = places[node];
    if (node > 0 && !is_in(members_[node - 1])) place = {};
    place.first_rank = first;
    first += place.ranks;
  }
  result.topology = {0, places};
  result.inventories = {options_.inventory};
  for (Newcomer& member : members_) {
    result.inventories.push_back(member.inventory);
    member.handed_over = is_in(member);
    result.members.push_back(member.handed_over ? std::move(member.channel) : Channel());
  }
  return result;
}

std::optional<size_t> Reception::take_latecomer() {
  for (size_t i = 0; i < members_.size(); ++i) {
    Newcomer& member = members_[i];
    if (!is_in(member) || member.handed_over || member.told) continue;
    member.told = true;
    if (const std::string why = unfit(i); !why.empty()) {
      JobOffer offer;
      offer.error_code = static_cast<int>(Exit::usage);
      offer.error = why;
      member.channel.send(FrameKind::job, -1, pack(offer));
      keep_until_exit(std::move(member.channel));
      member = {};
      continue;
    }
    member.channel.send(FrameKind::late, -1, "");
    return i + 1;
  }
  return std::nullopt;
}

void Reception::close(const JobOffer& last_words) {
  for (Newcomer& member : members_) {
    if (!member.channel.open()) continue;
    member.channel.send(FrameKind::job, -1, pack(last_words));
    if (!last_words.join_again) keep_until_exit(std::move(member.channel));
    member = {};
  }
  guests_.clear();
  listener_.reset();
}

std::vector<int> Reception::descriptors() const {
  std::vector<int> all{listener_.get()};
  for (const Guest& guest : guests_) all.push_back(guest.fd.get());
  for (const Newcomer& member : members_)
    if (member.channel.open()) all.push_back(member.channel.fd());
  return all;
}

}  // namespace prun
