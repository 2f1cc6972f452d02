#include "tests/conformance/rank_bodies.h"

#include <fmt/format.h>
#include <unistd.h>

#include <thread>
#include <vector>

namespace prun::testing {

void all_reduce(Communicator& group, int64_t count, bool rank_order) {
  std::vector<float> x(static_cast<size_t>(count), 1.0f);
  CollCall call;
  call.kind = CollKind::all_reduce;
  call.send = call.recv = x.data();
  call.count = count;
  call.rank_order = rank_order;
  group.run(call);
}

std::string counts_per_member(Rank& rank, int64_t scale) {
  Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
  const int n = rank.size, me = rank.index;
  std::string failed;
  // Member i sends i * scale elements of value i.
  std::vector<int64_t> shares;
  std::vector<float> mine(static_cast<size_t>(me * scale), static_cast<float>(me)), want;
  for (int r = 0; r < n; ++r) {
    shares.push_back(r * scale);
    want.insert(want.end(), static_cast<size_t>(r * scale), static_cast<float>(r));
  }
  std::vector<float> gathered(want.size(), -1);
  CollCall call;
  call.kind = CollKind::all_gather_v;
  call.send = mine.data();
  call.recv = gathered.data();
  call.counts = shares.data();
  all.run(call);
  if (gathered != want) failed += fmt::format("all_gather_v of {} each on {} ranks\n", scale, n);
  // i sends j (i + 2j) % 3 * scale elements of value 100 i + j.
  const auto amount = [&](int i, int j) { return (i + 2 * j) % 3 * scale; };
  std::vector<int64_t> out_counts, in_counts;
  std::vector<float> out;
  want.clear();
  for (int r = 0; r < n; ++r) {
    out_counts.push_back(amount(me, r));
    in_counts.push_back(amount(r, me));
    out.insert(out.end(), static_cast<size_t>(amount(me, r)), static_cast<float>(100 * me + r));
    want.insert(want.end(), static_cast<size_t>(amount(r, me)), static_cast<float>(100 * r + me));
  }
  std::vector<float> in(want.size(), -1);
  call.kind = CollKind::all_to_all_v;
  call.send = out.data();
  call.recv = in.data();
  call.counts = out_counts.data();
  call.recv_counts = in_counts.data();
  all.run(call);
  if (in != want) failed += fmt::format("all_to_all_v of {} on {} ranks\n", scale, n);
  return failed;
}

std::string aborted_in(World& world, const std::function<void()>& start) {
  std::thread other([&] {
    usleep(100000);
    world.abort();
    world.abort();
  });
  const double begin = now_s();
  std::string text;
  try {
    start();
  } catch (const Aborted&) {
  } catch (const Error& error) {
    text = error.what();
  }
  if (now_s() - begin > 1) text += "abort was ignored for a second and more";
  other.join();
  return text;
}

std::string aborted_under_way(Rank& rank, int absent, int64_t count) {
  Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
  all_reduce(all, 10);
  std::string text;
  if (rank.index != absent) {
    bool went_on = false;
    text = aborted_in(rank.world, [&] {
      all_reduce(all, count);
      went_on = true;
    });
    if (went_on) text += "went on";
  }
  rank.bootstrap.barrier();  // the absent rank waits until the others are done
  return text;
}

}  // namespace prun::testing
