// The handshake as a list of steps, each of which moves a fixed number of bytes without blocking.
#include "prun/sdk/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "prun/sdk/failure.h"

namespace prun::sdk {
namespace {

constexpr std::array<char, 8> kMagic = {'p', 'r', 'u', 'n', 'h', 'i', '0', '1'};
constexpr uint32_t kByteOrder = 0x01020304;
constexpr uint32_t kProtocol = 1;
constexpr const char* kStranger = "it is not a rank of this job";
constexpr auto kSilence = std::chrono::seconds(2);

}  // namespace

std::chrono::seconds longest_silence(int ranks_of_this_host) {
  // Counts the cores of this process's cpuset.
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  return kSilence * std::max(1, ranks_of_this_host / cores);
}

Identity::Identity(const prun_open_params& params) : rank(params.rank), ranks(params.ranks) {
  std::copy(std::begin(params.job_id), std::end(params.job_id), job.begin());
  std::copy(std::begin(params.job_secret), std::end(params.job_secret), secret.begin());
}

Handshake::Handshake(Descriptor socket, const Identity& identity, int to, int index)
    : socket_(std::move(socket)),
      identity_(identity),
      to_(to),
      index_(index),
      step_(to >= 0 ? Step::connecting : Step::read_hello) {
  ours_.magic = kMagic;
  ours_.byte_order = kByteOrder;
  ours_.version = kProtocol;
  ours_.from = identity.rank;
  ours_.to = to;
  ours_.ranks = identity.ranks;
  ours_.index = index;
  ours_.job = identity.job;
  if (::RAND_bytes(ours_.nonce.data(), static_cast<int>(ours_.nonce.size())) != 1)
    throw Failure(PRUN_ESYSTEM, "no random numbers for the handshake");
}

void Handshake::refuse(std::string why, int error) {
  state_ = State::refused;
  why_ = std::move(why);
  error_ = error;
}

Handshake::State Handshake::advance() {
  while (state_ == State::running && step()) {
  }
  return state_;
}

bool Handshake::reads() const {
  return step_ == Step::read_hello || step_ == Step::read_mac || step_ == Step::read_welcome;
}

bool Handshake::step() {
  Step next = step_;
  switch (step_) {
    case Step::connecting:
      if (!finish_connecting()) return false;
      next = Step::send_hello;
      break;
    case Step::send_hello:
      if (!transfer(true, &ours_, sizeof ours_)) return false;
      next = Step::read_mac;
      break;
    case Step::read_hello:  // the acceptor
      if (!transfer(false, &theirs_, sizeof theirs_) || !hello_is_sane()) return false;
      ours_.to = theirs_.from;
      ours_.index = theirs_.index;
      answer_ = {ours_, mac("acceptor")};
      next = Step::send_answer;
      break;
    case Step::send_answer:
      if (!transfer(true, &answer_, sizeof answer_)) return false;
      next = Step::read_mac;
      break;
    case Step::read_mac:
      if (dialler()) {
        if (!transfer(false, &answer_, sizeof answer_)) return false;
        theirs_ = answer_.hello;
        if (!hello_is_sane()) return false;
        if (!proves("acceptor", answer_.mac)) return false;
        mac_ = mac("dialler");
        next = Step::send_mac;
      } else {
        if (!transfer(false, &mac_, sizeof mac_) || !proves("dialler", mac_)) return false;
        mac_ = mac("welcome");
        next = Step::send_welcome;
      }
      break;
    case Step::send_mac:
      if (!transfer(true, &mac_, sizeof mac_)) return false;
      next = Step::read_welcome;
      break;
    case Step::send_welcome:
      if (!transfer(true, &mac_, sizeof mac_)) return false;
      state_ = State::done;
      break;
    case Step::read_welcome:
      if (!transfer(false, &mac_, sizeof mac_) || !proves("welcome", mac_)) return false;
      state_ = State::done;
      break;
  }
  step_ = next;
  moved_ = 0;
  return true;
}

bool Handshake::proves(const char* label, const Mac& theirs) {
  const Mac expected = mac(label);
  if (::CRYPTO_memcmp(expected.data(), theirs.data(), expected.size()) == 0) return true;
  refuse("its proof of the job secret is wrong");
  return false;
}

bool Handshake::transfer(bool sending, void* data, size_t bytes) {
  char* const at = static_cast<char*>(data) + moved_;
  const size_t left = bytes - moved_;
  const ssize_t n = sending ? ::send(socket_.get(), at, left, MSG_DONTWAIT | MSG_NOSIGNAL)
                            : ::recv(socket_.get(), at, left, MSG_DONTWAIT);
  if (n > 0) moved_ += static_cast<size_t>(n);
  if (moved_ == bytes) return true;
  // A stranger may send less than a hello and then nothing more.
  if (step_ == Step::read_hello && moved_ >= kMagic.size() && theirs_.magic != kMagic) refuse(kStranger);
  if (state_ == State::running && n == 0) refuse("it hung up", ECONNRESET);
  if (n < 0 && errno != EAGAIN && errno != EINTR) refuse(std::strerror(errno), errno);
  return false;
}

bool Handshake::finish_connecting() {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error == 0) return true;
  refuse(std::strerror(error), error);
  return false;
}

bool Handshake::hello_is_sane() {
  const Hello& h = theirs_;
  const bool ours = h.magic == kMagic && h.byte_order == kByteOrder && h.version == kProtocol &&
                    h.ranks == identity_.ranks && h.job == identity_.job && h.to == identity_.rank;
  const bool from = dialler() ? h.from == to_ && h.index == index_
                              : h.from > identity_.rank && h.from < identity_.ranks && h.index >= 0;
  if (!ours || !from) refuse(kStranger);
  return ours && from;
}

Mac Handshake::mac(const char* label) const {
  const Hello& dials = dialler() ? ours_ : theirs_;
  const Hello& accepts = dialler() ? theirs_ : ours_;
  std::array<uint8_t, 16 + 2 * sizeof(Hello)> text{};
  std::strncpy(reinterpret_cast<char*>(text.data()), label, 15);
  std::memcpy(text.data() + 16, &dials, sizeof dials);
  std::memcpy(text.data() + 16 + sizeof dials, &accepts, sizeof accepts);
  Mac out{};
  unsigned length = out.size();
  if (::HMAC(::EVP_sha256(), identity_.secret.data(), static_cast<int>(identity_.secret.size()), text.data(),
             text.size(), out.data(), &length) == nullptr)
    throw Failure(PRUN_ESYSTEM, "HMAC-SHA256 is not available");
  return out;
}

}  // namespace prun::sdk
