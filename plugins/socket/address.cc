// Opens listeners and reads the address blobs of peers. TCP listens on loopback unless an interface is given, and on
// a real interface only with a job secret.
#include "address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <prun/sdk/local_socket.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "tune.h"

namespace prun::socket {
namespace {

constexpr std::array<char, 8> kAddressMagic = {'p', 'r', 'u', 'n', 's', 'o', 'c', '1'};
constexpr int kBacklog = 4096;

template <size_t N>
void copy_text(std::array<char, N>& to, const std::string& text, const char* what) {
  if (text.size() >= N) throw Failure{PRUN_EINVAL, -1, fmt::format("{} is longer than {} bytes", what, N - 1)};
  std::copy(text.begin(), text.end(), to.begin());
}

struct Found {
  sockaddr_storage address{};
  socklen_t length = 0;
};

// Returns params.interface_address; "" = none, or the host is older than that field.
std::string given_address(const prun_open_params& params) {
  constexpr size_t kWithAddress = offsetof(prun_open_params, interface_address) + sizeof params.interface_address;
  return params.size >= kWithAddress && params.interface_address != nullptr ? params.interface_address : "";
}

// Returns the given address; `name` is the interface of a link-local one.
Found named_address(const std::string& text, const char* name) {
  Found found;
  auto& v4 = reinterpret_cast<sockaddr_in&>(found.address);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(found.address);
  if (::inet_pton(AF_INET, text.c_str(), &v4.sin_addr) == 1) {
    v4.sin_family = AF_INET;
    found.length = sizeof v4;
  } else if (::inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1) {
    v6.sin6_family = AF_INET6;
    if (IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr) && name != nullptr) v6.sin6_scope_id = ::if_nametoindex(name);
    found.length = sizeof v6;
  } else {
    throw Failure{PRUN_EINVAL, -1, fmt::format("'{}' is no IP address", text)};
  }
  return found;
}

// Returns the interface's address, IPv4 preferred; loopback if `name` is null or empty.
Found interface_address(const char* name) {
  Found found;
  if (name == nullptr || *name == '\0') {
    auto& loopback = reinterpret_cast<sockaddr_in&>(found.address);
    loopback.sin_family = AF_INET;
    loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    found.length = sizeof loopback;
    return found;
  }
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) throw sdk::system_failure("getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  std::vector<std::string> names;
  for (const ifaddrs* it = list; it != nullptr; it = it->ifa_next) {
    if (std::find(names.begin(), names.end(), it->ifa_name) == names.end()) names.push_back(it->ifa_name);
    if (it->ifa_addr == nullptr || std::strcmp(it->ifa_name, name) != 0) continue;
    const bool v4 = it->ifa_addr->sa_family == AF_INET, v6 = it->ifa_addr->sa_family == AF_INET6;
    if (!(v4 || (v6 && found.length == 0))) continue;
    found.length = v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&found.address, it->ifa_addr, found.length);
    if (v4) break;
  }
  if (found.length > 0) return found;
  const bool exists = std::find(names.begin(), names.end(), name) != names.end();
  std::string all;
  for (const std::string& each : names) all += (all.empty() ? "" : ", ") + each;
  throw Failure{PRUN_EINVAL, -1,
                exists ? fmt::format("network interface '{}' has no IP address", name)
                       : fmt::format("there is no network interface '{}' (there are: {})", name, all)};
}

void put_tcp_address(int fd, Address& address) {
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0) throw sdk::system_failure("getsockname");
  if (bound.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(bound);
    address.family = 4;
    address.port = ntohs(v4.sin_port);
    std::memcpy(address.ip.data(), &v4.sin_addr, 4);
    address.loopback = address.ip[0] == 127;
  } else {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(bound);
    address.family = 6;
    address.port = ntohs(v6.sin6_port);
    address.scope = v6.sin6_scope_id;
    std::memcpy(address.ip.data(), &v6.sin6_addr, 16);
    address.loopback = IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
  }
}

void set_port(Found& found, int port) {
  auto& any = found.address;
  (any.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(any).sin_port
                            : reinterpret_cast<sockaddr_in6&>(any).sin6_port) = htons(static_cast<uint16_t>(port));
}

// Returns a listener; without a descriptor and with errno EADDRINUSE if the port is taken. SO_REUSEADDR admits ports of
// a finished job, which remain in TIME_WAIT for a minute; with it, two sockets may be bound to a port but only one
// listens.
Descriptor listen_at(Found& found, int port, const prun_open_params& params, const Options& options) {
  Descriptor fd(::socket(found.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) throw sdk::system_failure("socket");
  const int on = 1;
  if (port != 0) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  set_port(found, port);
  if (params.local_ranks == params.ranks) tune_tcp_of_host(fd.get(), options);
  const bool listens = ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&found.address), found.length) == 0 &&
                       ::listen(fd.get(), kBacklog) == 0;
  if (listens) return fd;
  const int error = errno;
  fd.reset();
  errno = error;
  return {};
}

// Spreads the ranks of a host over the port range: each starts at another port and takes the next free one.
Descriptor listen_in_range(Found& found, const prun_open_params& params, const Options& options) {
  const int ports = options.last_port - options.first_port + 1, begin = params.local_rank % ports;
  errno = EADDRINUSE;
  for (int i = 0; i < ports && errno == EADDRINUSE; ++i) {
    const int port = options.first_port == 0 ? 0 : options.first_port + (begin + i) % ports;
    if (Descriptor fd = listen_at(found, port, params, options)) return fd;
  }
  if (options.first_port != 0 && errno == EADDRINUSE)
    throw Failure{
        PRUN_ESYSTEM, -1,
        fmt::format("all of the ports {} are in use; each rank of a host needs one (--port-range)", options.ports)};
  throw sdk::system_failure(fmt::format("listen on {}", params.interface_name ? params.interface_name : "loopback"));
}

Descriptor listen_tcp(const prun_open_params& params, const Options& options, Address& address) {
  const std::string given = given_address(params);
  Found found = given.empty() ? interface_address(params.interface_name) : named_address(given, params.interface_name);
  Descriptor fd = listen_in_range(found, params, options);
  put_tcp_address(fd.get(), address);
  const bool secret =
      std::any_of(std::begin(params.job_secret), std::end(params.job_secret), [](uint8_t b) { return b; });
  if (options.encrypt && !secret)
    throw Failure{PRUN_EINVAL, -1, "socket option encrypt=1: a job secret is needed, and there is none"};
  if (!address.loopback && !secret)
    throw Failure{PRUN_EINVAL, -1,
                  fmt::format("to listen on {} a job secret is needed, and there is none", address.tcp_text())};
  return fd;
}

Descriptor listen_unix(const prun_open_params& params, Address& address) {
  std::random_device random;
  const std::string job(params.job_id, strnlen(params.job_id, sizeof params.job_id));
  const std::string name = fmt::format("prun/{:.36}/{}/{:08x}", job, params.rank, random());
  copy_text(address.unix_name, name, "the AF_UNIX name");
  Descriptor fd = sdk::listen_locally(name, SOCK_STREAM, kBacklog);
  if (!fd) throw sdk::system_failure("listen on AF_UNIX");
  return fd;
}

}  // namespace

Listeners listen(const prun_open_params& params, const Options& options) {
  Listeners listeners;
  Address& address = listeners.address;
  address.magic = kAddressMagic;
  copy_text(address.version, kVersion, "the version");
  copy_text(address.options, options.text, "the option string");
  address.host = sdk::this_host();
  if (params.ranks == 1) return listeners;
  if (options.use_unix) listeners.unix_socket = listen_unix(params, address);
  if (!options.use_unix || params.local_ranks < params.ranks)
    listeners.tcp_socket = listen_tcp(params, options, address);
  return listeners;
}

Address Address::decode(std::string_view blob, int rank) {
  Address address;
  if (blob.size() != sizeof address)
    throw Failure{PRUN_EINVAL, rank,
                  fmt::format("the address of rank #{} has {} bytes instead of {}: another version of "
                              "the socket plugin?",
                              rank, blob.size(), sizeof address)};
  std::memcpy(&address, blob.data(), sizeof address);
  if (address.magic != kAddressMagic)
    throw Failure{PRUN_EINVAL, rank, fmt::format("the address of rank #{} is not one of the socket plugin", rank)};
  address.version.back() = address.options.back() = address.unix_name.back() = '\0';
  return address;
}

std::string Address::tcp_text() const {
  char text[INET6_ADDRSTRLEN] = "";
  ::inet_ntop(family == 4 ? AF_INET : AF_INET6, ip.data(), text, sizeof text);
  return fmt::format(fmt::runtime(family == 4 ? "{}:{}" : "[{}]:{}"), text, port);
}

sockaddr_storage Address::tcp(socklen_t* length) const {
  sockaddr_storage out{};
  if (family == 4) {
    auto& v4 = reinterpret_cast<sockaddr_in&>(out);
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&v4.sin_addr, ip.data(), 4);
    *length = sizeof v4;
  } else {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(out);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    v6.sin6_scope_id = scope;
    std::memcpy(&v6.sin6_addr, ip.data(), 16);
    *length = sizeof v6;
  }
  return out;
}

}  // namespace prun::socket
