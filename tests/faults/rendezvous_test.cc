// Two and three launchers on loopback, each in its own process: joining, authentication, failing together.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <map>

#include "launch/control.h"
#include "launch/handshake.h"
#include "launch/runtime_folder.h"
#include "launch/tcp.h"
#include "tests/faults/launch_fixture.h"

namespace prun {
namespace {

// Sends a member's messages up to its receipt of the job.
void join_as(Channel& member) {
  member.send(FrameKind::settings, -1, pack(std::vector<NodeSetting>{}));
  std::vector<Frame> frames;
  while (frames.empty() && member.receive(frames)) {
    pollfd readable{member.fd(), POLLIN, 0};
    poll(&readable, 1, 1000);
  }
}

using RankMain = std::function<int(const RankStart&)>;

// A launcher's result; a thrown Error counts as its message.
struct NodeResult {
  int code = -1;
  std::string messages, lines;
  double seconds = 0;
};

int free_port() {
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  bind(fd.get(), reinterpret_cast<sockaddr*>(&address), bytes);
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  return ntohs(address.sin_port);
}

class RendezvousTest : public testing::Test {
 protected:
  void SetUp() override { rendezvous = "127.0.0.1:" + std::to_string(free_port()); }
  void TearDown() override { EXPECT_EQ(child_processes(), std::vector<int>{}); }

  LaunchOptions node(int rank, int nnodes = 2, int nproc = 2) const {
    return {.nproc = nproc,
            .nnodes = nnodes,
            .node_rank = rank,
            .rendezvous = rendezvous,
            .join_timeout_s = 10,
            .command = "plan.lua"};
  }

  int launch(const LaunchOptions& options, const RankMain& rank_main, LaunchObserver& observer) {
    Launch launch(options, observer);
    std::string job;
    try {
      if (launch.gives_job()) job = make_job(launch.ranks());
    } catch (const Error& error) {
      launch.refuse(error);
      throw;
    }
    return launch.run(job, rank_main);
  }

  // Starts a launcher; finish collects its result.
  pid_t start(const LaunchOptions& options, const RankMain& rank_main) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
    pid_t pid = fork();
    if (pid == 0) {
      if (options.command.run == become_nobody_for && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(1);
      NodeResult result;
      KeepingObserver observer;
      result.seconds = seconds_of([&] {
        try {
          result.code = launch(options, rank_main, observer);
        } catch (const Error& error) {
          result.code = static_cast<int>(error.code());
          observer.messages += error.what();
        }
      });
      for (const auto& [rank, text] : observer.lines) result.lines += std::to_string(rank) + ":" + text + "\n";
      std::string packed = Packer()
                               .number(result.code)
                               .text(observer.messages)
                               .text(result.lines)
                               .number(static_cast<int64_t>(result.seconds * 1e6))
                               .take();
      _exit(write(ends[1], packed.data(), packed.size()) == static_cast<ssize_t>(packed.size()) ? 0 : 1);
    }
    close(ends[1]);
    results_[pid] = Fd(ends[0]);
    return pid;
  }

  NodeResult finish(pid_t pid) {
    std::string packed;
    char bytes[4096];
    for (ssize_t got; (got = read(results_[pid].get(), bytes, sizeof bytes)) > 0;)
      packed.append(bytes, static_cast<size_t>(got));
    waitpid(pid, nullptr, 0);
    NodeResult result;
    if (packed.empty()) return result;  // killed
    Unpacker unpacker(packed);
    result.code = static_cast<int>(unpacker.number());
    result.messages = unpacker.text();
    result.lines = unpacker.text();
    result.seconds = static_cast<double>(unpacker.number()) / 1e6;
    return result;
  }

  std::vector<NodeResult> run(const std::vector<LaunchOptions>& nodes, const RankMain& rank_main) {
    std::vector<pid_t> pids;
    for (const LaunchOptions& options : nodes) pids.push_back(start(options, rank_main));
    std::vector<NodeResult> results;
    for (pid_t pid : pids) results.push_back(finish(pid));
    return results;
  }

  static void expect_says(const NodeResult& result, const std::string& text) {
    EXPECT_NE(result.messages.find(text), std::string::npos) << "'" << text << "' is not in\n" << result.messages;
  }

  std::string rendezvous, become_nobody_for = "-";
  std::function<std::string(int)> make_job = [](int ranks) { return "job of " + std::to_string(ranks); };

 private:
  std::map<pid_t, Fd> results_;
};

int exchange_and_print(const RankStart& start) {
  for (int round = 0; round < 3; ++round) {
    std::vector<std::string> all = start.launcher->all_gather(std::to_string(start.rank * 10 + round));
    for (size_t rank = 0; rank < all.size(); ++rank)
      if (all[rank] != std::to_string(static_cast<int>(rank) * 10 + round)) return 1;
  }
  start.launcher->print(std::string(start.job) + ", local " + std::to_string(start.local_rank) + " of " +
                        std::to_string(start.local_ranks));
  // All ranks must have received the same secret, which is useless outside this job.
  for (const std::string& secret : start.launcher->all_gather(start.job_id + start.job_secret + start.job_hash))
    if (secret != start.job_id + start.job_secret + start.job_hash) return 1;
  return 0;
}

TEST_F(RendezvousTest, NodesOfDifferentSizesFormOneJob) {
  std::vector<NodeResult> results = run({node(0, 3, 2), node(1, 3, 1), node(2, 3, 3)}, exchange_and_print);
  for (const NodeResult& result : results) {
    EXPECT_EQ(result.code, 0);
    EXPECT_EQ(result.messages, "");
  }
  for (const char* line : {"0:job of 6, local 0 of 2", "1:job of 6, local 1 of 2", "2:job of 6, local 0 of 1",
                           "3:job of 6, local 0 of 3", "5:job of 6, local 2 of 3"})
    EXPECT_NE(results[0].lines.find(line), std::string::npos) << line << " in\n" << results[0].lines;
  EXPECT_EQ(results[1].lines, "-1:job of 6\n");
}

TEST_F(RendezvousTest, ASecretLetsNodesIn) {
  LaunchOptions head = node(0), member = node(1);
  head.secret = member.secret = "0123456789abcdef";
  for (const NodeResult& result : run({head, member}, exchange_and_print)) EXPECT_EQ(result.code, 0) << result.messages;
}

TEST_F(RendezvousTest, TheSecondNodeMayComeFirst) {
  pid_t member = start(node(1), exchange_and_print);
  usleep(150000);  // the first attempts fail, and it retries
  pid_t head = start(node(0), exchange_and_print);
  EXPECT_EQ(finish(member).code, 0);
  EXPECT_EQ(finish(head).code, 0);
}

TEST_F(RendezvousTest, AWrongSecretIsTurnedAwayAndNamed) {
  LaunchOptions head = node(0), member = node(1);
  head.secret = "right";
  member.secret = "wrong";
  head.join_timeout_s = 0.5;
  std::vector<NodeResult> results = run({head, member}, exchange_and_print);
  EXPECT_EQ(results[0].code, 13);
  expect_says(results[0], "1/2 nodes joined at " + rendezvous + " within 500.0 ms; missing node 1; 1 turned away");
  expect_says(results[0], "has another secret");
  EXPECT_EQ(results[1].code, 13);
  expect_says(results[1], "has another secret than this node");
  EXPECT_LT(results[1].seconds, 5);
}

TEST_F(RendezvousTest, MissingNodesAreNamed) {
  LaunchOptions head = node(0, 3);
  head.join_timeout_s = 0.3;
  NodeResult result = run({head}, exchange_and_print)[0];
  EXPECT_EQ(result.code, 13);
  expect_says(result, "1/3 nodes joined");
  expect_says(result, "missing node 1, node 2");
  LaunchOptions member = node(1);
  member.join_timeout_s = 0.3;
  result = run({member}, exchange_and_print)[0];
  EXPECT_EQ(result.code, 13);
  expect_says(result, "node 0 does not answer at " + rendezvous + " within 300.0 ms: Connection refused");
}

TEST_F(RendezvousTest, NodesThatDisagreeAreToldSo) {
  LaunchOptions head = node(0, 3), other_count = node(1, 2);
  head.join_timeout_s = 1;
  std::vector<NodeResult> results = run({head, other_count, node(2, 3), node(2, 3)}, exchange_and_print);
  EXPECT_EQ(results[0].code, 13);
  EXPECT_EQ(results[1].code, 2);
  expect_says(results[1], "--nnodes is 2 here and 3 on node 0");
  bool first_is_taken = results[2].code == 2;
  expect_says(results[first_is_taken ? 2 : 3], "node 2 has joined " + rendezvous + " already");
  expect_says(results[first_is_taken ? 3 : 2], "ended before the job began");
}

TEST_F(RendezvousTest, NoSecretNoOtherAddress) {
  LaunchOptions head = node(0);
  head.rendezvous = "0.0.0.0:4711";
  NodeResult result = run({head}, exchange_and_print)[0];
  EXPECT_EQ(result.code, 2);
  expect_says(result, "not a loopback address");
}

TEST_F(RendezvousTest, BadAddressesAreRefused) {
  for (const char* text : {"", "localhost", "localhost:", "localhost:x", "localhost:0", "localhost:65536", ":123"}) {
    LaunchOptions head = node(0);
    head.rendezvous = text;
    NodeResult result = run({head}, exchange_and_print)[0];
    EXPECT_EQ(result.code, 2) << text;
    expect_says(result, *text == '\0' ? "--nnodes needs --rendezvous HOST:PORT" : "--rendezvous must be HOST:PORT");
  }
}

TEST_F(RendezvousTest, APortInUseNamesItsHolder) {
  Fd holder = listen_on(resolve(rendezvous));
  NodeResult result = run({node(0)}, exchange_and_print)[0];
  EXPECT_EQ(result.code, 14);
  expect_says(result, "is in use by pid " + std::to_string(getpid()) + " (");
}

TEST_F(RendezvousTest, WhatIsNotPrunIsRefused) {
  Fd server = listen_on(resolve(rendezvous));
  pid_t member = start(node(1), exchange_and_print);
  pollfd incoming{server.get(), POLLIN, 0};
  ASSERT_EQ(poll(&incoming, 1, 5000), 1);
  Fd connection(accept4(server.get(), nullptr, nullptr, SOCK_CLOEXEC));
  std::string banner = "SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n" + std::string(64, ' ');
  ASSERT_GT(send(connection.get(), banner.data(), banner.size(), MSG_NOSIGNAL), 0);
  NodeResult result = finish(member);
  EXPECT_EQ(result.code, 13);
  expect_says(result, "is not prun");
}

TEST_F(RendezvousTest, StrangersDoNotDisturb) {
  pid_t head = start(node(0), exchange_and_print);
  std::vector<Fd> strangers;
  std::string why;
  while (strangers.size() < 10) {  // silent strangers, and strangers that send too much
    Fd fd = connect_to(resolve(rendezvous), std::chrono::seconds(1), &why);
    if (!fd) continue;
    std::string noise(strangers.size() * 300, 'x');
    send(fd.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    strangers.push_back(std::move(fd));
  }
  pid_t member = start(node(1), exchange_and_print);
  EXPECT_EQ(finish(head).code, 0);
  EXPECT_EQ(finish(member).code, 0);
}

// Connections that send nothing and are reopened constantly: the oldest are closed, so nodes still get through.
TEST_F(RendezvousTest, AFloodOfStrangersKeepsNobodyOut) {
  pid_t head = start(node(0, 3), exchange_and_print);
  const pid_t flood = fork();
  if (flood == 0) {
    std::vector<Fd> idle(300);
    std::string why;
    for (size_t i = 0;; i = (i + 1) % idle.size())
      idle[i] = connect_to(resolve(rendezvous), std::chrono::milliseconds(500), &why);
  }
  usleep(300000);
  for (pid_t member : {start(node(1, 3), exchange_and_print), start(node(2, 3), exchange_and_print)}) {
    NodeResult result = finish(member);
    EXPECT_EQ(result.code, 0) << result.messages;
    EXPECT_LT(result.seconds, 5);
  }
  EXPECT_EQ(finish(head).code, 0);
  kill(flood, SIGKILL);
  waitpid(flood, nullptr, 0);
}

// Every user of the machine can connect and listen on loopback, so node 0's secret is in a folder of its user only.
TEST_F(RendezvousTest, AnotherUserNeitherJoinsNorPlaysNode0) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const auto as_nobody = [&](LaunchOptions options) {
    options.join_timeout_s = 1;
    options.command = "nobody";
    return options;
  };
  become_nobody_for = "nobody";
  LaunchOptions head = node(0);
  head.join_timeout_s = 1.5;
  std::vector<NodeResult> results = run({head, as_nobody(node(1))}, exchange_and_print);
  EXPECT_EQ(results[0].code, 13);
  EXPECT_EQ(results[1].code, 13);
  expect_says(results[1], "port-");
  results = run({as_nobody(node(0)), node(1)}, exchange_and_print);
  EXPECT_EQ(results[0].code, 13);
  EXPECT_EQ(results[1].code, 13);
}

TEST_F(RendezvousTest, ProcessesOfOneHostMeetAtASocket) {
  rendezvous = "unix:rendezvous-test-" + std::to_string(getpid());
  for (const NodeResult& result : run({node(0, 3), node(1, 3), node(2, 3)}, exchange_and_print))
    EXPECT_EQ(result.code, 0) << result.messages;
  EXPECT_NE(access((runtime_folder() + "/" + rendezvous.substr(5)).c_str(), F_OK), 0) << "nothing is left";
}

TEST_F(RendezvousTest, ASettingThatDiffersEndsAllNodes) {
  LaunchOptions head = node(0, 3), other = node(1, 3);
  head.settings = {{"plan", "a.lua (1234)", "1234"}, {"--set layers", "= 4", "= 4"}};
  other.settings = {{"plan", "b.lua (1234)", "1234"}, {"--set layers", "= 5", "= 5"}};
  LaunchOptions same = node(2, 3);
  same.settings = head.settings;
  for (const NodeResult& result : run({head, other, same}, exchange_and_print)) {
    EXPECT_EQ(result.code, 2);
    expect_says(result, "has --set layers = 5, node 0 has --set layers = 4: give all nodes the same");
  }
}

// Recorded messages are useless later, because both sides' nonces enter both MACs.
TEST_F(RendezvousTest, OldHellosAndAnswersAreWorthless) {
  Challenge first = make_challenge(), second = make_challenge();
  Hello hello = make_hello("secret", first, 1, 2, 4, "host-b");
  EXPECT_EQ(check_hello("secret", first, hello), Admission::accepted);
  EXPECT_EQ(check_hello("secret", second, hello), Admission::wrong_secret);
  EXPECT_EQ(check_hello("other", first, hello), Admission::wrong_secret);
  Hello forged = hello;
  forged.nproc = 8;
  EXPECT_EQ(check_hello("secret", first, forged), Admission::wrong_secret);
  Answer answer = make_answer("secret", first, hello, Admission::accepted, 2);
  EXPECT_TRUE(answer_is_genuine("secret", first, hello, answer));
  Hello later = make_hello("secret", first, 1, 2, 4, "host-b");
  EXPECT_FALSE(answer_is_genuine("secret", first, later, answer));
  answer.status = static_cast<uint32_t>(Admission::node_taken);
  EXPECT_FALSE(answer_is_genuine("secret", first, hello, answer));
}

TEST_F(RendezvousTest, AnErrorOfTheJobReachesAllNodes) {
  make_job = [](int) -> std::string { throw plan_error("no such axis 'dq'", Site{"plan.lua", 3}); };
  for (const NodeResult& result : run({node(0), node(1)}, exchange_and_print)) {
    EXPECT_EQ(result.code, 3);
    expect_says(result, "plan.lua:3: no such axis 'dq'");
  }
}

TEST_F(RendezvousTest, ADeathOnAnyNodeEndsAllNodes) {
  for (int culprit : {0, 3}) {
    std::vector<NodeResult> results = run({node(0), node(1)}, [culprit](const RankStart& start) -> int {
      start.launcher->all_gather("");
      if (start.rank == culprit) raise(SIGKILL);
      return wait_for_abort(start);
    });
    std::string what = "rank " + std::to_string(culprit) + " was killed by SIGKILL";
    EXPECT_EQ(results[0].code, 10);
    EXPECT_EQ(results[1].code, 10);
    expect_says(results[0], "prun: " + what);
    expect_says(results[0], "(node " + std::to_string(culprit / 2) + "), pid ");
    expect_says(results[0], "op of rank " + std::to_string(culprit));
    expect_says(results[1], "prun: node 0 has ended the job: " + what);
    for (const NodeResult& result : results) EXPECT_LT(result.seconds, 2);
  }
}

TEST_F(RendezvousTest, AFailureKeepsItsCode) {
  std::vector<NodeResult> results = run({node(0), node(1)}, [](const RankStart& start) -> int {
    if (start.rank == 2) throw Error(Exit::non_finite, "the loss is nan");
    start.launcher->all_gather("");
    return 0;
  });
  for (const NodeResult& result : results) {
    EXPECT_EQ(result.code, 20);
    expect_says(result, "rank 2: the loss is nan");
  }
}

TEST_F(RendezvousTest, RanksOfOtherNodesThatDoNotJoinAreNamed) {
  LaunchOptions head = node(0);
  head.join_timeout_s = 0.5;
  std::vector<NodeResult> results = run({head, node(1)}, [](const RankStart& start) -> int {
    if (start.rank == 3) return wait_for_abort(start);
    start.launcher->all_gather("");
    return 0;
  });
  EXPECT_EQ(results[0].code, 13);
  expect_says(results[0], "3/4 joined within 500.0 ms; missing 3 on ");
  EXPECT_EQ(results[1].code, 13);
}

// When the launcher dies, its own ranks and those of the other node end.
TEST_F(RendezvousTest, AKilledLauncherEndsTheOtherNode) {
  for (int victim : {0, 1}) {
    int ready[2];
    ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
    RankMain wait = [&](const RankStart& start) -> int {
      start.launcher->all_gather("");
      if (start.rank == 0 && write(ready[1], "x", 1) != 1) return 1;
      return wait_for_abort(start);
    };
    pid_t pids[2] = {start(node(0), wait), start(node(1), wait)};
    char byte;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    kill(pids[victim], SIGKILL);
    NodeResult other = finish(pids[1 - victim]);
    finish(pids[victim]);
    EXPECT_EQ(other.code, 17);
    EXPECT_LT(other.seconds, 3);
    expect_says(other, victim == 0 ? "the connection to node 0 (127.0.0.1:" : "the connection to node 1 (");
    for (int fd : ready) close(fd);
  }
}

TEST_F(RendezvousTest, AnInterruptedNodeEndsAll) {
  int ready[2];
  ASSERT_EQ(pipe2(ready, O_CLOEXEC), 0);
  RankMain wait = [&](const RankStart& start) -> int {
    start.launcher->all_gather("");
    if (start.rank == 0 && write(ready[1], "x", 1) != 1) return 1;
    return wait_for_abort(start);
  };
  pid_t head = start(node(0), wait), member = start(node(1), wait);
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  kill(member, SIGINT);
  NodeResult result = finish(head);
  EXPECT_EQ(result.code, 130);
  expect_says(result, "ended by SIGINT on node 1 (");
  EXPECT_EQ(finish(member).code, 130);
  for (int fd : ready) close(fd);
}

// A member with the right secret sends invalid messages: node 0 ends with an error that names the node.
TEST_F(RendezvousTest, AMemberThatSaysWhatCannotBeIsAnError) {
  struct Lie {
    FrameKind kind;
    int rank;
    std::string payload, why;
  };
  Failure none;
  for (const Lie& lie : {Lie{FrameKind::ended, 0, "", "it speaks for rank 0, which is not one of its own"},
                         Lie{FrameKind::gather, 7, "blob", "it speaks for rank 7, which is not one of its own"},
                         Lie{FrameKind::verdict, -1, "", "a frame of kind"},
                         Lie{static_cast<FrameKind>(99), -1, "", "a frame of kind 99"},
                         Lie{FrameKind::failure, -1, pack(none), "a failure with code 0"},
                         Lie{FrameKind::failure, -1, "short", "a message between launcher and rank is too short"}}) {
    SetUp();  // another port
    LaunchOptions options = node(0);
    options.secret = "of both";
    pid_t head = start(options, wait_for_abort);
    std::string why;
    HostPort at = resolve(rendezvous);
    Fd fd;
    while (!fd) fd = connect_to(at, std::chrono::seconds(5), &why);
    Challenge challenge;
    ASSERT_EQ(recv(fd.get(), &challenge, sizeof challenge, MSG_WAITALL), static_cast<ssize_t>(sizeof challenge));
    Hello hello = make_hello(options.secret, challenge, 1, 2, 2, "liar");
    std::string_view bytes = bytes_of(hello);
    ASSERT_EQ(send(fd.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    Answer answer;
    ASSERT_EQ(recv(fd.get(), &answer, sizeof answer, MSG_WAITALL), static_cast<ssize_t>(sizeof answer));
    Channel member(std::move(fd), frame_key(options.secret, challenge, hello, false),
                   frame_key(options.secret, challenge, hello, true));
    join_as(member);
    member.send(lie.kind, lie.rank, lie.payload);
    NodeResult result = finish(head);
    EXPECT_EQ(result.code, 17) << lie.why;
    expect_says(result, "the connection to node 1 (liar) is broken");
    expect_says(result, lie.why);
  }
}

}  // namespace
}  // namespace prun
