// A namespace lives as long as a process is in it, so each has a sleeping child.
#include "tests/conformance/several_hosts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <numeric>

namespace prun::testing {
namespace {

constexpr int kHosts = 2;

void shell(const std::string& command) {
  PRUN_CHECK(std::system(command.c_str()) == 0, command);  // NOLINT: a command of the test
}

pid_t hold() {
  int ready[2];
  PRUN_CHECK(pipe2(ready, O_CLOEXEC) == 0, "no pipe");
  pid_t child = fork();
  PRUN_CHECK(child >= 0, "fork failed");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char done = unshare(CLONE_NEWNET) == 0 ? 'y' : 'n';
    if (write(ready[1], &done, 1) == 1)
      while (true) pause();
    _exit(1);
  }
  char done = 0;
  PRUN_CHECK(read(ready[0], &done, 1) == 1 && done == 'y', "no namespace");
  close(ready[0]);
  close(ready[1]);
  return child;
}

std::string in(pid_t holder) { return fmt::format("nsenter --net=/proc/{}/ns/net ip ", holder); }

}  // namespace

bool Namespaces::permitted() {
  return geteuid() == 0 && std::system("ip link show lo > /dev/null 2>&1") == 0 &&
         std::system("unshare -n true > /dev/null 2>&1") == 0;
}

Namespaces::Namespaces() : owner_(getpid()) {
  for (int host = 0; host < kHosts; ++host) holders_.push_back(hold());
  shell(in(holders_[0]) + fmt::format("link add eth0 type veth peer name eth0 netns {}", holders_[1]));
  for (int host = 0; host < kHosts; ++host) {
    const std::string ip = in(holders_[static_cast<size_t>(host)]);
    shell(ip + fmt::format("addr add 10.77.0.{}/24 dev eth0", host + 1));
    shell(ip + "link set eth0 up");
    shell(ip + "link set lo up");
  }
}

Namespaces::~Namespaces() {
  if (getpid() != owner_) return;  // a rank with a copy of the object
  for (int holder : holders_) {
    kill(holder, SIGKILL);
    waitpid(holder, nullptr, 0);
  }
}

void Namespaces::enter(int host) const {
  int fd = open(fmt::format("/proc/{}/ns/net", holders_[static_cast<size_t>(host)]).c_str(), O_RDONLY | O_CLOEXEC);
  PRUN_CHECK(fd >= 0 && setns(fd, CLONE_NEWNET) == 0, fmt::format("host {}", host));
  close(fd);
}

void Namespaces::pull() const { shell(in(holders_[0]) + "link set eth0 down"); }

std::vector<RankReport> run_on_hosts(const HostsJob& job, const std::function<std::string(Rank&)>& body) {
  LocalJob local = job.local;
  local.ranks = std::accumulate(job.ranks_of_host.begin(), job.ranks_of_host.end(), 0);
  return run_ranks(local, [&](LocalBootstrap& bootstrap) {
    WorldOptions options = suite().options(bootstrap);
    int host = 0, first = 0;
    while (bootstrap.rank() >= first + job.ranks_of_host[static_cast<size_t>(host)])
      first += job.ranks_of_host[static_cast<size_t>(host++)];
    options.local_rank = bootstrap.rank() - first;
    options.local_ranks = job.ranks_of_host[static_cast<size_t>(host)];
    options.transport = job.transport;
    options.transport_options = "";
    options.algorithm = job.algorithm;
    options.deadline_s = job.deadline_s;
    if (job.namespaces != nullptr) {
      job.namespaces->enter(host);
      options.network_interface = "eth0";
    } else {
      options.host = fmt::format("host {}", host);
    }
    std::unique_ptr<World> world = World::open(options, bootstrap);
    char* arena = static_cast<char*>(world->allocate(kArenaBytes));
    world->connect();
    Rank rank{bootstrap, *world, arena, bootstrap.rank(), bootstrap.ranks()};
    std::string text = body(rank);
    if (text.empty()) bootstrap.barrier();
    return text;
  });
}

}  // namespace prun::testing
