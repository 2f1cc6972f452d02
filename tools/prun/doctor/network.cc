// Interfaces, names and the clock of this host, for jobs on several hosts.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <prun/sdk/tls.h>
#include <sys/socket.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "base/text.h"
#include "comm/transport/interfaces.h"
#include "doctor/check.h"

namespace prun::doctor {
namespace {

int64_t number_of(const std::string& interface, const char* what) {
  std::ifstream file(fmt::format("/sys/class/net/{}/{}", interface, what));
  int64_t number = -1;
  return file >> number ? number : -1;
}

Finding interface(const Interface& each) {
  Finding found{each.name};
  found.number = mtu_of(each.name);
  const int64_t speed = number_of(each.name, "speed");  // Mb/s; virtual interfaces report none
  found.text = each.addresses.empty() ? "no address" : join(each.addresses, ", ");
  if (!each.up) found.text = "down";
  if (found.number > 0) found.text += fmt::format(", MTU {}", found.number);
  if (speed > 0) found.text += fmt::format(", {} Mb/s", speed);
  if (!each.up || each.addresses.empty()) found.status = Status::absent;
  return found;
}

// Result of resolving a name, and the duration of the lookup.
struct Resolved {
  std::vector<std::string> addresses;
  std::string problem;
  double seconds = 0;
};

Resolved resolve(const std::string& name) {
  Resolved found;
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* all = nullptr;
  const auto begin = std::chrono::steady_clock::now();
  const int error = getaddrinfo(name.c_str(), nullptr, &wanted, &all);
  found.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (error != 0) found.problem = gai_strerror(error);
  for (const addrinfo* each = all; each != nullptr; each = each->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(each->ai_addr, each->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0)
      found.addresses.emplace_back(text);
  }
  if (all != nullptr) freeaddrinfo(all);
  return found;
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

Finding name_finding(const char* what, const std::string& name, bool needed) {
  const Resolved resolved = resolve(name);
  Finding found{what, Status::ok, fmt::format("{} is {}", name, join(resolved.addresses, ", "))};
  if (!resolved.problem.empty()) {
    found.status = needed ? Status::fail : Status::warn;
    found.text = fmt::format("{} has no address: {}", name, resolved.problem);
    found.fix = "a line in /etc/hosts, or an address in its place";
  } else if (resolved.seconds > 2) {
    found.status = Status::warn;
    found.text += fmt::format(", after {}", human_seconds(resolved.seconds));
    found.fix = "a name server does not answer: /etc/resolv.conf";
  } else if (std::all_of(resolved.addresses.begin(), resolved.addresses.end(), is_loopback) && name != "localhost" &&
             !is_loopback(name)) {
    // Debian's /etc/hosts maps the own name to 127.0.1.1.
    found.status = needed ? Status::warn : Status::absent;
    found.text += ", a loopback address (see /etc/hosts)";
    found.fix = "node 0 listens at --rendezvous: other hosts reach it by another address only";
  }
  return found;
}

Finding clock(const DoctorOptions& options) {
  timex asked{};
  const int state = adjtimex(&asked);
  if (state != TIME_ERROR && state >= 0) return {"clock", Status::ok, "synchronized by a time server"};
  return {"clock", options.job.launch.nnodes > 1 ? Status::warn : Status::absent,
          "apparently not synchronized by a time server",
          "times of several hosts will not fit together: chrony or systemd-timesyncd"};
}

// Reports whether --encrypt can use the kernel's TLS; without it OpenSSL encrypts, which is slower but equally secure.
Finding encryption(const DoctorOptions& options) {
  Finding found{"kTLS", sdk::kernel_has_tls() ? Status::ok : Status::absent, "the kernel encrypts what is sent"};
  if (found.status == Status::absent) found.text = "not in this kernel (module tls): --encrypt encrypts in the process";
  if (options.job.world.encrypt && options.job.launch.nnodes > 1) found.text += "; --encrypt is given";
  return found;
}

}  // namespace

int64_t mtu_of(const std::string& name) { return number_of(name, "mtu"); }

std::string host_name() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

Findings network(const DoctorOptions& options) {
  Findings found;
  for (const Interface& each : list_interfaces()) found.push_back(interface(each));
  found.push_back(name_finding("own name", host_name(), false));
  const std::string& rendezvous = options.job.launch.rendezvous;
  if (!rendezvous.empty())
    found.push_back(name_finding("--rendezvous", rendezvous.substr(0, rendezvous.rfind(':')), true));
  for (const std::string& host : options.hosts)
    found.push_back(name_finding(fmt::format("host {}", host).c_str(), host, true));
  found.push_back(clock(options));
  found.push_back(encryption(options));
  return found;
}

}  // namespace prun::doctor
