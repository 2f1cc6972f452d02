// How long the nodes of a job take to join while strangers connect: join_bench NODES STRANGERS. Nodes are threads of a
// second process and strangers those of a third, which connect, say nothing, and come again.
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "launch/launch.h"
#include "launch/rendezvous.h"
#include "launch/tcp.h"

namespace prun {
namespace {

struct Silent : LaunchObserver {
  void started(const std::vector<int>&, const std::vector<int>&, const std::vector<void*>&) override {}
  void tick() override {}
  void line(int, const std::string&) override {}
  std::string where(int) override { return ""; }
  void message(const std::string&) override {}
};

LaunchOptions options_of(int node, int nodes) {
  LaunchOptions options;
  options.nnodes = nodes;
  options.node_rank = node;
  options.rendezvous = "127.0.0.1:29477";
  options.secret = "of this benchmark";
  options.join_timeout_s = 20;
  return options;
}

void connect_again_and_again(int strangers) {
  const HostPort at = resolve(options_of(0, 2).rendezvous);
  std::vector<Fd> idle(strangers);
  std::string why;
  for (size_t i = 0;; i = (i + 1) % idle.size()) {
    idle[i] = connect_to(at, std::chrono::seconds(1), &why);
    if (!idle[i]) usleep(1000);  // nobody listens yet
  }
}

void join_all(int nodes) {
  std::vector<std::thread> threads;
  for (int node = 1; node < nodes; ++node)
    threads.emplace_back([=] {
      Silent observer;
      const LaunchOptions options = options_of(node, nodes);
      const JoinedHead head = join_head(options, "host", observer);
      pause();  // a node that goes has not joined
    });
  for (std::thread& thread : threads) thread.join();
}

template <class Body>
pid_t start(Body body) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  body();
  _exit(0);
}

double seconds_to_join(int nodes, int strangers) {
  pid_t flood = 0;
  if (strangers > 0) flood = start([=] { connect_again_and_again(strangers); });
  usleep(100000);
  const auto begin = std::chrono::steady_clock::now();
  const pid_t members = start([=] { join_all(nodes); });
  Silent observer;
  const LaunchOptions options = options_of(0, nodes);
  const JoinedNodes joined = gather_nodes(options, "host", observer);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (pid_t pid : {members, flood})
    if (pid != 0) kill(pid, SIGKILL), waitpid(pid, nullptr, 0);
  return seconds;
}

}  // namespace
}  // namespace prun

int main(int argc, char** argv) {
  const int nodes = argc > 1 ? std::atoi(argv[1]) : 64, strangers = argc > 2 ? std::atoi(argv[2]) : 1000;
  std::vector<double> all;
  for (int round = 0; round < 9; ++round) all.push_back(prun::seconds_to_join(nodes, strangers));
  std::sort(all.begin(), all.end());
  fmt::print("{} nodes, {} strangers: median {:.0f} ms, worst {:.0f} ms\n", nodes, strangers, 1e3 * all[4],
             1e3 * all[8]);
  return all[4] < 1 ? 0 : 1;
}
