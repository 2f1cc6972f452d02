// A file or socket of a crashed job is harmless: its secret differs from every other job's, and no process listens.
#include "launch/meeting.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "launch/await_name.h"
#include "launch/runtime_folder.h"
#include "launch/secret.h"

namespace prun {
namespace {

constexpr std::string_view kLocal = "unix:";

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    throw usage_error(fmt::format("{} is too long for a socket's name; set XDG_RUNTIME_DIR to a shorter one", path));
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

bool attach(int fd, const sockaddr_un& address) {
  return connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

void write_secret(const std::string& path, const std::string& secret) {
  const std::string fresh = path + ".new";
  unlink(fresh.c_str());
  Fd fd(open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const bool written = fd && write(fd.get(), secret.data(), secret.size()) == static_cast<ssize_t>(secret.size());
  if (!written || rename(fresh.c_str(), path.c_str()) != 0)
    throw Error(Exit::join, fmt::format("cannot write {}: {}", path, std::strerror(errno)));
}

}  // namespace

bool on_one_host(const LaunchOptions& options) { return options.rendezvous.starts_with(kLocal); }

Meeting::Meeting(const LaunchOptions& options)
    : text_(options.rendezvous), given_(options.secret), link_timeout_s_(options.link_timeout_s) {
  if (text_.starts_with(kLocal)) {
    folder_ = text_.substr(kLocal.size());
    path_ = fmt::format("{}/{}/node0", runtime_folder(), folder_);
    return;
  }
  await_name(options);
  at_ = resolve(text_);
  if (!at_.loopback && given_.empty())
    throw usage_error(
        fmt::format("--rendezvous {} is not a loopback address: give all nodes the same secret "
                    "(--secret-file FILE, or PRUN_SECRET)",
                    text_));
}

Meeting::~Meeting() {
  if (to_remove_.empty()) return;
  unlink(to_remove_.c_str());
  // Fails while another job uses the folder.
  if (!path_.empty()) rmdir(std::filesystem::path(path_).parent_path().c_str());
}

std::string Meeting::secret_file() const { return runtime_folder() + "/port-" + at_.port + ".secret"; }

Fd Meeting::listen() {
  if (!path_.empty()) return listen_locally();
  Fd listener = listen_on(at_);
  if (!given_.empty()) return listener;
  own_ = hex(random_bytes(32));
  write_secret(secret_file(), own_);
  to_remove_ = secret_file();
  return listener;
}

Fd Meeting::listen_locally() {
  runtime_folder(folder_);
  const sockaddr_un address = address_of(path_);
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (attach(fd.get(), address))
    throw Error(Exit::transport,
                fmt::format("another job meets at {} already: two launchers were given one job", text_));
  unlink(path_.c_str());  // from a crashed job
  fd.reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(fd.get(), kBacklog) != 0)
    throw Error(Exit::transport, fmt::format("cannot listen at {}: {}", path_, std::strerror(errno)));
  to_remove_ = path_;
  return fd;
}

Fd Meeting::connect(std::chrono::milliseconds limit, std::string* why) {
  if (!path_.empty()) return connect_locally(why);
  Fd fd = connect_to(at_, limit, why);
  if (fd) set_tcp_options(fd.get(), link_timeout_s_);
  return fd;
}

Fd Meeting::connect_locally(std::string* why) const {
  Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!attach(fd.get(), address_of(path_))) {
    *why = std::strerror(errno);
    fd.reset();
  }
  return fd;
}

bool Meeting::admits(int fd) const {
  if (path_.empty()) return true;  // the secret alone decides
  ucred who{};
  socklen_t bytes = sizeof who;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 && who.uid == geteuid();
}

std::optional<std::string> Meeting::secret(std::string* why) const {
  if (!path_.empty() || !given_.empty()) return given_;
  if (!own_.empty()) return own_;
  std::ifstream file(secret_file());
  std::string secret;
  if (std::getline(file, secret) && !secret.empty()) return secret;
  *why = fmt::format(
      "what listens there left no {}: it has a secret (--secret-file, PRUN_SECRET), or another user runs it",
      secret_file());
  return std::nullopt;
}

}  // namespace prun
