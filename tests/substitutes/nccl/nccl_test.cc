// Cases that the conformance suite cannot require of every transport: missing, old or different libraries, errors that
// NCCL reports later, an ncclCommAbort that never returns, registered buffers.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "comm/transport/job_state.h"
#include "comm/transport/plugin.h"
#include "comm/transport/transport_session.h"
#include "tests/conformance/suite.h"

namespace prun::testing {
namespace {
namespace fs = std::filesystem;

const std::string kNew = PRUN_SUBSTITUTES "/libnccl_2_28.so", kOld = PRUN_SUBSTITUTES "/libnccl_2_18.so";
const std::string kNewest = PRUN_SUBSTITUTES "/libnccl_2_30.so";

std::string libraries(const std::string& nccl, const std::string& more = "") {
  return fmt::format("library={0},cudart={0}{1}", nccl, more);  // one file provides both
}

void all_reduce(Communicator& group, float* x, int64_t count) {
  CollCall call;
  call.kind = CollKind::all_reduce;
  call.send = call.recv = x;
  call.count = count;
  group.run(call);
}

// Returns "Exit N: message" of opening a world of two with these options, or "opened".
std::string opening(
    const std::string& options, const std::function<void()>& before = [] {}) {
  LocalJob job;
  auto reports = run_ranks(job, [&](LocalBootstrap& bootstrap) -> std::string {
    before();
    WorldOptions world = suite().options(bootstrap);
    world.ranks = world.local_ranks = 2;
    world.transport_options = options;
    World::open(world, bootstrap);
    return "opened";
  });
  return reports[0].text;
}

TEST(Nccl, SaysWhatIsMissing) {
  EXPECT_EQ(
      opening("library=/nowhere/libnccl.so.2,cudart=" + kNew),
      "Exit 2: transport nccl: NCCL cannot be loaded: /nowhere/libnccl.so.2: cannot open shared object file: No such "
      "file or directory");
  std::string text = opening(libraries(kNew), [] { setenv("PRUN_SUBSTITUTE_DEVICES", "0", 1); });
  EXPECT_EQ(text.rfind("Exit 2: transport nccl: no CUDA device: no CUDA-capable device is detected (CUDA runtime ", 0),
            0u)
      << text;
  EXPECT_EQ(opening(libraries(kNew, ",device=3"), [] { setenv("PRUN_SUBSTITUTE_DEVICES", "3", 1); }),
            "Exit 2: transport nccl: nccl option device=3: there are 3 devices");
}

TEST(Nccl, RanksDoNotShareADevice) {
  LocalJob job;
  job.ranks = 2;
  auto reports = run_ranks(job, [](LocalBootstrap& bootstrap) -> std::string {
    setenv("PRUN_SUBSTITUTE_DEVICES", "1", 1);
    if (bootstrap.rank() == 0) return "";
    World::open(suite().options(bootstrap), bootstrap);
    return "opened";
  });
  EXPECT_NE(reports[1].text.find("2 local ranks and 1 CUDA devices: every rank needs one of its own"),
            std::string::npos)
      << reports[1].text;
}

// Returns each rank's report on a machine with one GPU, after an all-reduce over all of them.
std::vector<RankReport> sums_on_one_gpu(int ranks, const std::string& library, const std::string& option,
                                        const std::function<std::string(const WorldOptions&)>& check) {
  LocalJob job;
  job.ranks = ranks;
  return run_ranks(job, [&](LocalBootstrap& bootstrap) -> std::string {
    setenv("PRUN_SUBSTITUTE_DEVICES", "1", 1);
    WorldOptions options = suite().options(bootstrap);
    options.transport_options = libraries(library, option);
    std::unique_ptr<World> world = World::open(options, bootstrap);
    world->connect();
    std::vector<float> x(100, static_cast<float>(bootstrap.rank() + 1));
    all_reduce(world->communicator(all_ranks(options.ranks), 0), x.data(), 100);
    if (x[99] != static_cast<float>(options.ranks * (options.ranks + 1) / 2))
      return fmt::format("the sum is {}", x[99]);
    bootstrap.barrier();
    return check(options);
  });
}

TEST(Nccl, RanksMayShareADeviceForTests) {
  for (const std::string& library : {kNewest, kNew, kOld}) {
    const auto check = [&](const WorldOptions& options) -> std::string {
      const char *enabled = getenv("NCCL_MULTI_RANK_GPU_ENABLE"), *host = getenv("NCCL_HOSTID");
      if (library == kNewest) return enabled != nullptr && host == nullptr ? "" : "not by NCCL's own setting";
      const std::string own = fmt::format("{}-rank-{}", options.job_id, options.rank);
      return enabled == nullptr && host != nullptr && host == own ? "" : "not by a host of its own";
    };
    EXPECT_EQ(failures(sums_on_one_gpu(4, library, ",share=1", check)), "") << library;
  }
}

TEST(Nccl, WithoutTheOptionNcclRefusesToShare) {
  const auto nothing = [](const WorldOptions&) { return std::string(); };
  for (const auto& [library, words] : {std::pair(kNewest, "Multiple Ranks are using the same GPU"),
                                       std::pair(kNew, "Duplicate GPU detected : rank ")}) {
    const std::string texts = failures(sums_on_one_gpu(2, library, ",device=0", nothing));
    EXPECT_NE(texts.find(words), std::string::npos) << texts;
  }
}

TEST(Nccl, SharingHasLimits) {
  const std::string texts =
      failures(sums_on_one_gpu(9, kNew, ",share=1", [](const WorldOptions&) { return std::string(); }));
  EXPECT_NE(texts.find("nccl option share=1: 9 ranks share device 0, at most 8 can"), std::string::npos) << texts;
  LocalJob job;
  job.ranks = 2;
  auto reports = run_ranks(job, [](LocalBootstrap& bootstrap) -> std::string {
    WorldOptions options = suite().options(bootstrap);
    options.local_rank = 0;
    options.local_ranks = 1;
    options.host = fmt::format("host{}", bootstrap.rank());
    options.transport_options = libraries(kNew, ",share=1");
    World::open(options, bootstrap);
    return "opened";
  });
  EXPECT_EQ(reports[0].text, "Exit 2: transport nccl: nccl option share=1 is for ranks of one host: here are 1 of 2");
}

// Skipped on machines with a driver.
TEST(Nccl, WithoutADriverItLoadsAndSaysSo) {
  std::vector<PluginInfo> infos = list_plugins(suite().plugin_dirs);
  auto nccl = std::find_if(infos.begin(), infos.end(), [](const PluginInfo& i) { return i.name == "nccl"; });
  ASSERT_NE(nccl, infos.end());
  EXPECT_EQ(nccl->error, "");
  if (dlopen("libcuda.so.1", RTLD_LAZY) != nullptr) GTEST_SKIP() << "this machine has a driver";
  const std::string missing = "no NVIDIA driver on this machine (libcuda.so.1 is not found)";
  EXPECT_NE(nccl->summary.find("not usable here: " + missing), std::string::npos) << nccl->summary;
  EXPECT_EQ(opening(""), "Exit 2: transport nccl: " + missing);
}

TEST(Nccl, OptionsThatAreWrong) {
  EXPECT_EQ(opening("max_cta=3"), "Exit 2: transport nccl: nccl has no option 'max_cta' (did you mean 'max_ctas'?)");
  EXPECT_EQ(opening("speed=3"),
            "Exit 2: transport nccl: nccl has no option 'speed' (one of: abort_ms, check, cta_policy, cudart, device, "
            "library, max_ctas, min_ctas, register, share, split_share)");
  EXPECT_EQ(opening("max_ctas=0"), "Exit 2: transport nccl: nccl option max_ctas=0: must be 1 .. 64");
  EXPECT_EQ(opening("max_ctas=2,min_ctas=4"),
            "Exit 2: transport nccl: nccl options min_ctas=4 and max_ctas=2: the first is larger");
  std::string text = opening(libraries(kOld, ",cta_policy=zero"));
  EXPECT_EQ(
      text.rfind("Exit 2: transport nccl: nccl option cta_policy: needs NCCL 2.28, found NCCL 2.18.5, " + kOld, 0), 0u)
      << text;
}

TEST(Nccl, TheInterfaceIsNcclsUnlessTheUserHasSetOne) {
  for (const char* set : {"", "eth7"}) {
    LocalJob job;
    EXPECT_EQ(failures(run_ranks(job,
                                 [&](LocalBootstrap& bootstrap) -> std::string {
                                   unsetenv("NCCL_SOCKET_IFNAME");
                                   if (*set != '\0') setenv("NCCL_SOCKET_IFNAME", set, 1);
                                   WorldOptions options = suite().options(bootstrap);
                                   options.ranks = 2;
                                   options.network_interface = "lo";
                                   auto world = World::open(options, bootstrap);
                                   std::string got = getenv("NCCL_SOCKET_IFNAME");
                                   return got == (*set != '\0' ? set : "lo") ? "" : got;
                                 })),
              "");
  }
}

// Each rank finds another library under the same name, like different images on two hosts.
TEST(Nccl, RanksWithDifferentVersionsAreNamed) {
  LocalJob job;
  job.ranks = 2;
  auto reports = run_ranks(job, [](LocalBootstrap& bootstrap) -> std::string {
    std::string folder = fmt::format("{}/versions-{}-{}", PRUN_SUBSTITUTES, getppid(), bootstrap.rank());
    fs::create_directory(folder);
    fs::create_symlink(bootstrap.rank() == 0 ? kNew : kOld, folder + "/libnccl.so.2");
    fs::current_path(folder);
    WorldOptions options = suite().options(bootstrap);
    options.transport_options = libraries("/proc/self/cwd/libnccl.so.2");
    std::unique_ptr<World> world = World::open(options, bootstrap);
    fs::remove_all(folder);
    world->connect();
    return "connected";
  });
  for (const RankReport& report : reports) {
    bool told = report.text.rfind("Aborted: ", 0) == 0 || report.text.rfind("Exit 12: ", 0) == 0;
    EXPECT_TRUE(told) << report.text;
    EXPECT_NE(report.text.find("has loaded NCCL 2."), std::string::npos) << report.text;
    EXPECT_NE(report.text.find("2.18.5"), std::string::npos) << report.text;
    EXPECT_NE(report.text.find("2.28.9"), std::string::npos) << report.text;
  }
}

// test reports the error with NCCL's text and the loaded library.
TEST(Nccl, ErrorsThatComeLaterAreTold) {
  ConnectedJob job;
  job.local.ranks = 2;
  setenv("PRUN_SUBSTITUTE_FAIL_AT", "20", 1);
  auto reports = run_connected(job, [](Rank& rank) -> std::string {
    Communicator& all = rank.world.communicator({0, 1}, 0);
    std::vector<float> x(100);
    for (int i = 0; i < 100; ++i) all_reduce(all, x.data(), 100);
    return "went on";
  });
  unsetenv("PRUN_SUBSTITUTE_FAIL_AT");
  EXPECT_NE(
      reports[0].text.find("ncclAllReduce: remote process exited or there was a network error: the link to a peer is "
                           "down (NCCL 2.28.9, "),
      std::string::npos)
      << reports[0].text;
  EXPECT_EQ(reports[0].text.rfind("Exit 14: ", 0), 0u) << reports[0].text;
  EXPECT_EQ(reports[1].text.rfind("Aborted: rank 0 failed", 0), 0u) << reports[1].text;
}

// Calls a function of the substitute that returns a counter.
int counted(const std::string& library, const char* what) {
  return reinterpret_cast<int (*)()>(dlsym(dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD), what))();
}

// NCCL starts a thread for each call on a nonblocking communicator, which costs 30 to 60 us per call.
TEST(Nccl, ACollectiveStartsNoThread) {
  EXPECT_EQ(failures(run_connected(3,
                                   [](Rank& rank) -> std::string {
                                     std::vector<float> x(100);
                                     for (const std::vector<int>& ranks : {std::vector{0, 1, 2}, std::vector{0, 1}}) {
                                       if (rank.index == 2 && ranks.size() == 2) continue;
                                       Communicator& group = rank.world.communicator(ranks, 0);
                                       all_reduce(group, x.data(), 100);
                                       const int before = counted(kNew, "substitute_threads");
                                       for (int i = 0; i < 20; ++i) all_reduce(group, x.data(), 100);
                                       const int started = counted(kNew, "substitute_threads") - before;
                                       if (started > 0) return fmt::format("20 calls started {} threads", started);
                                     }
                                     return "";
                                   })),
            "");
}

// Cases: the world's parent, the world's communicator, a group of all ranks, the parent of a smaller group, and that
// group.
TEST(Nccl, AbortEndsACommunicatorThatIsNeverMade) {
  struct Case {
    std::vector<int> ranks;
    int hangs;
  };
  for (const Case& one :
       {Case{{0, 1, 2}, 1}, Case{{0, 1, 2}, 2}, Case{{0, 1, 2}, 3}, Case{{0, 1}, 3}, Case{{0, 1}, 4}}) {
    LocalJob job;
    job.ranks = 3;
    job.abort_on_death = false;
    auto reports = run_ranks(job, [&](LocalBootstrap& bootstrap) -> std::string {
      if (bootstrap.rank() == 1) setenv("PRUN_SUBSTITUTE_INIT_HANGS", std::to_string(one.hangs).c_str(), 1);
      std::unique_ptr<World> world = World::open(suite().options(bootstrap), bootstrap);
      std::atomic<double> aborted{0};
      std::thread other([&] {
        usleep(500000);
        aborted = now_s();
        world->abort();
      });
      std::string text = "went on";
      try {
        world->connect();
        if (bootstrap.rank() == 2 && one.ranks.size() == 2) throw Aborted("not in this group");
        std::vector<float> x(100);
        all_reduce(world->communicator(one.ranks, 0), x.data(), 100);
      } catch (const Aborted&) {
        text = "";
      }
      other.join();
      world.reset();
      if (now_s() - aborted > 2) text = fmt::format("took {:.1f} s", now_s() - aborted);
      bootstrap.barrier();
      return text;
    });
    EXPECT_EQ(failures(reports), "") << one.ranks.size() << " ranks, communicator " << one.hangs;
  }
}

// NCCL connects two ranks in their first message, which waits for both; neither `batch` nor an abort waits for it.
TEST(Nccl, AMessageThatNobodyReceivesIsAborted) {
  LocalJob job;
  job.ranks = 2;
  job.abort_on_death = false;
  auto reports = run_ranks(job, [](LocalBootstrap& bootstrap) -> std::string {
    std::string text;
    double aborted = 0;
    {
      set_job(&bootstrap, 2);
      WorldOptions options = suite().options(bootstrap);
      TransportSession session(load_named("nccl", options.plugin_dirs), options);
      join_and_connect(session, options, bootstrap);
      prun_comm* comm = nullptr;
      prun_result result = empty_result();
      const int ranks[] = {0, 1};
      prun_status status = session.table().comm_create(session.ctx(), ranks, 2, 1, &comm, &result);
      while (status == PRUN_OK || status == PRUN_AGAIN) {
        status = session.table().comm_test(session.ctx(), comm, &result);
        if (status == PRUN_OK) break;
      }
      if (status != PRUN_OK) return result.message;
      std::vector<char> data(100);
      const prun_p2p op = {0, 1, 1, data.data(), data.size(), PRUN_MEM_HOST, nullptr};
      prun_req* req = nullptr;
      const double start = now_s();
      if (bootstrap.rank() == 0) {
        if (session.table().batch(session.ctx(), &op, 1, {PRUN_MEM_HOST, nullptr}, &req, &result) != PRUN_OK)
          return result.message;
        if (now_s() - start > 0.5) text = "it waits in batch";
        while (now_s() - start < 0.1 && text.empty())
          if (session.table().test(session.ctx(), req, &result) != PRUN_AGAIN) text = "it ended";
      }
      bootstrap.barrier();
      aborted = now_s();
      session.abort();
      if (req != nullptr && session.wait(req, 0, result) != PRUN_EABORTED) text += "it was not aborted";
    }
    if (now_s() - aborted > 4) text += fmt::format("the end took {:.1f} s", now_s() - aborted);
    bootstrap.barrier();
    return text;
  });
  EXPECT_EQ(failures(reports), "");
}

// ncclCommAbort may hang (nccl#1777); abort and the end of the world wait for it at most as long as configured.
TEST(Nccl, AnAbortThatHangsIsLeftBehind) {
  LocalJob job;
  job.ranks = 2;
  job.abort_on_death = false;
  setenv("PRUN_SUBSTITUTE_ABORT_HANGS", "1", 1);
  auto reports = run_ranks(job, [](LocalBootstrap& bootstrap) -> std::string {
    WorldOptions options = suite().options(bootstrap);
    options.transport_options = libraries(kNew, ",abort_ms=300");
    std::unique_ptr<World> world = World::open(options, bootstrap);
    world->connect();
    Communicator& all = world->communicator({0, 1}, 0);
    std::vector<float> x(100);
    all_reduce(all, x.data(), 100);
    if (bootstrap.rank() == 1) {  // absent until the other rank is done
      bootstrap.barrier();
      _exit(0);
    }
    std::thread other([&] {
      usleep(50000);
      world->abort();
    });
    double start = now_s();
    std::string text = "went on";
    try {
      all_reduce(all, x.data(), 100);
    } catch (const Aborted&) {
      text = "";
    }
    other.join();
    world.reset();
    bootstrap.barrier();
    if (now_s() - start > 4) text = fmt::format("took {:.1f} s", now_s() - start);
    if (!text.empty()) return text;
    _exit(0);  // skips the library's threads, one of which never ends
  });
  unsetenv("PRUN_SUBSTITUTE_ABORT_HANGS");
  EXPECT_EQ(failures(reports), "");
}

// cudaMemcpyAsync between pinned memory waits for its stream, which may be waiting for another rank's message.
TEST(Nccl, AMessageToItselfDoesNotWaitForAnotherRank) {
  LocalJob job;
  job.ranks = 2;
  job.timeout_s = 20;
  EXPECT_EQ(
      failures(run_ranks(
          job,
          [&](LocalBootstrap& bootstrap) -> std::string {
            set_job(&bootstrap, 2);
            WorldOptions options = suite().options(bootstrap);
            TransportSession session(load_named("nccl", options.plugin_dirs), options);
            void *memory = nullptr, *handle = nullptr;
            prun_result result = empty_result();
            if (session.table().mem_alloc(session.ctx(), 4096, PRUN_MEM_HOST, &memory, &handle, &result) != PRUN_OK)
              return result.message;
            join_and_connect(session, options, bootstrap);
            auto* values = static_cast<char*>(memory);
            const auto message = [&](int is_recv, int peer, size_t at) {
              return prun_p2p{is_recv, peer, 0, values + at, 100, PRUN_MEM_HOST, handle};
            };
            const auto post = [&](const std::vector<prun_p2p>& ops) {
              prun_req* req = nullptr;
              const prun_status status =
                  session.table().batch(session.ctx(), ops.data(), ops.size(), {PRUN_MEM_HOST, nullptr}, &req, &result);
              if (status != PRUN_OK) session.fail(status, result, "posting");
              return req;
            };
            if (bootstrap.rank() == 1) {
              bootstrap.barrier();
              return session.wait(post({message(0, 0, 0)}), 0, result) == PRUN_OK ? "" : "no send";
            }
            prun_req* waits = post({message(1, 1, 0)});
            for (const double start = now_s(); now_s() - start < 0.03;)  // until it is in the stream
              if (session.table().test(session.ctx(), waits, &result) != PRUN_AGAIN)
                return "a message that was not sent came";
            values[200] = 7;
            if (session.wait(post({message(0, 0, 200), message(1, 0, 400)}), 0, result) != PRUN_OK || values[400] != 7)
              return "the message to itself did not come";
            bootstrap.barrier();
            return session.wait(waits, 0, result) == PRUN_OK ? "" : "no receive";
          })),
      "");
}

// The substitute ends a process that frees a communicator with registered buffers, or unknown memory.
TEST(Nccl, DeviceMemoryIsRegisteredWithEveryCommunicator) {
  for (const std::string& library : {kNew, kOld}) {
    LocalJob job;
    job.ranks = 2;
    EXPECT_EQ(failures(run_ranks(job,
                                 [&](LocalBootstrap& bootstrap) -> std::string {
                                   set_job(&bootstrap, 2);
                                   WorldOptions options = suite().options(bootstrap);
                                   options.transport_options = libraries(library);
                                   TransportSession session(load_named("nccl", options.plugin_dirs), options);
                                   void *memory = nullptr, *handle = nullptr;
                                   prun_result result = empty_result();
                                   if (session.table().mem_alloc(session.ctx(), 4096, PRUN_MEM_CUDA, &memory, &handle,
                                                                 &result) != PRUN_OK)
                                     return result.message;
                                   auto* values = static_cast<char*>(memory);
                                   if (std::any_of(values, values + 4096, [](char c) { return c != 0; }))
                                     return "not zeroed";
                                   join_and_connect(session, options, bootstrap);
                                   const int peer = 1 - bootstrap.rank();
                                   const prun_p2p ops[] = {{1, peer, 0, values, 100, PRUN_MEM_CUDA, handle},
                                                           {0, peer, 0, values + 2048, 100, PRUN_MEM_CUDA, handle}};
                                   prun_req* req = nullptr;
                                   if (session.table().batch(session.ctx(), ops, 2, {PRUN_MEM_HOST, nullptr}, &req,
                                                             &result) != PRUN_OK ||
                                       session.wait(req, 0, result) != PRUN_OK)
                                     return result.message;
                                   const auto count = [&] { return counted(library, "substitute_registrations"); };
                                   const int want = library == kNew ? 1 : 0;
                                   if (count() != want)
                                     return fmt::format("{} buffers are registered, not {}", count(), want);
                                   bootstrap.barrier();
                                   session.table().mem_free(session.ctx(), memory, handle);
                                   return count() == 0 ? "" : "it stays registered";
                                 })),
              "")
        << library;
  }
}

}  // namespace
}  // namespace prun::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  prun::testing::Suite& suite = prun::testing::suite();
  suite.transport = "nccl";
  suite.transport_options = prun::testing::libraries(prun::testing::kNew);
  suite.plugin_dirs = prun::plugin_directories(argv[0]);
  suite.job_id = "nccl" + std::to_string(getpid());
  return RUN_ALL_TESTS();
}
