// Measures rows in the order of operation, dtype, reduction, size. The memory of both sides is allocated before either
// connects.
#include "bench/rows.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "bench/data.h"
#include "bench/measure.h"
#include "bench/ops.h"
#include "bench/settings.h"
#include "bench/transport.h"
#include "comm/collectives/call.h"
#include "job/launcher_bootstrap.h"
#include "job/rank.h"
#include "launch/control.h"

namespace prun {
namespace {

using Json = nlohmann::ordered_json;

// Rounds to six significant digits, because JSON would print all of a double.
double digits(double value) { return std::stod(fmt::format("{:.6g}", value)); }

double cpu_seconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

class Rows {
 public:
  Rows(const BenchSettings& settings, std::vector<BenchTransport>& sides, const RankStart& start)
      : settings_(settings), sides_(sides), start_(start) {}

  void run() {
    for (const std::string& name : settings_.ops) {
      const BenchOp& op = find_bench_op(name);
      if (op.what == BenchOp::What::idle) {
        idle(op);
        continue;
      }
      const bool reduces = op.what == BenchOp::What::collective && traits(op.kind).reduces;
      for (Dtype dtype : op.sized ? settings_.dtypes : std::vector{Dtype::u8})
        for (RedOp redop : reduces ? settings_.redops : std::vector{RedOp::sum}) sizes(op, dtype, redop);
    }
  }

 private:
  int ranks() const { return start_.ranks; }

  void sizes(const BenchOp& op, Dtype dtype, RedOp redop) {
    std::set<int64_t> counts;  // several small sizes may become one element
    for (int64_t bytes : op.sized ? settings_.bytes : std::vector<int64_t>{0}) {
      CollCall call = call_of(op, bytes, dtype, redop, settings_.root, ranks());
      call.rank_order = settings_.rank_order && op.what == BenchOp::What::collective && traits(op.kind).reduces;
      if (counts.insert(call.count).second) row(op, call);
    }
  }

  void row(const BenchOp& op, const CollCall& call) {
    Json row = head(op);
    const int64_t bytes =
        op.what == BenchOp::What::collective ? call_bytes(call, ranks()) : call.count * dtype_bytes(call.dtype);
    const bool reduces = op.what == BenchOp::What::collective && traits(op.kind).reduces;
    row["bytes"] = bytes;
    row["count"] = call.count;
    row["dtype"] = op.sized ? Json(dtype_name(call.dtype)) : Json(nullptr);
    row["redop"] = reduces ? Json(redop_name(call.redop)) : Json(nullptr);
    row["root"] = op.what == BenchOp::What::collective && traits(op.kind).rooted ? Json(call.root) : Json(nullptr);
    const BenchData data(op, call, ranks());
    const bool in_first = settings_.place == BenchPlace::in && op.in_place;
    row["place"] = in_first ? "in" : "out";
    std::vector<Json> measured = measure(op, call, data, bytes, in_first);
    row.update(measured[0]);
    if (settings_.place == BenchPlace::both)
      row["in_place"] = op.in_place ? measure(op, call, data, bytes, true)[0] : Json(nullptr);
    if (measured.size() == 2) {
      row["vs"] = measured[1];
      row["ratio"] = digits(measured[1]["time_us"].get<double>() / measured[0]["time_us"].get<double>());
    }
    print(row);
  }

  // Measures each side.
  std::vector<Json> measure(const BenchOp& op, const CollCall& plain, const BenchData& data, int64_t bytes,
                            bool in_place) {
    note(fmt::format("{} of {}{}", op.name, human_bytes(bytes), in_place ? " in place" : ""));
    std::vector<Timed> timed;
    std::vector<Json> measured(sides_.size());
    for (size_t s = 0; s < sides_.size(); ++s) {
      const BenchTransport& side = sides_[s];
      const CollCall call = side.placed(plain, in_place);
      if (settings_.check) measured[s]["wrong"] = wrong(op, side, call, side.placed_on_host(plain, in_place), data);
      side.run(op, call);
      const CollPath path = side.group().path_of(call);  // before the timing, which makes calls of its own
      measured[s]["algorithm"] = path.algorithm;
      measured[s]["why"] = path.why;
      timed.push_back({&side.group(), side.buffers().repeatable([&op, &side, call] { side.run(op, call); }),
                       [&side] { side.buffers().wait(); }});
    }
    std::vector<Timing> timings = time_in_turn(timed, settings_);
    for (size_t s = 0; s < sides_.size(); ++s) measured[s] = figures(op, sides_[s], bytes, timings[s], measured[s]);
    return measured;
  }

  int64_t wrong(const BenchOp& op, const BenchTransport& side, const CollCall& call, const CollCall& on_host,
                const BenchData& data) {
    const int me = side.group().index();
    data.fill(me, on_host);
    side.buffers().put();
    side.run(op, call);
    side.buffers().wait();
    side.buffers().fetch();
    return sum_of(side.group(), data.wrong(me, on_host));
  }

  Json figures(const BenchOp& op, const BenchTransport& side, int64_t bytes, const Timing& timing,
               const Json& checked) {
    const double half = op.what == BenchOp::What::ping_pong ? 0.5 : 1;  // factor for one way
    const double seconds = timing.median_s * half;
    const double algbw = static_cast<double>(bytes) / seconds / 1e9;
    Json json;
    if (sides_.size() == 2) {
      json["transport"] = side.name();
      json["transport_options"] = side.transport_options();
      if (settings_.explain) json["plugin"] = side.plugin_file();
    }
    json["time_us"] = digits(seconds * 1e6);
    json["algbw_gbs"] = digits(algbw);
    json["busbw_gbs"] = digits(algbw * bus_factor(op, ranks()));
    json["wrong"] = checked.contains("wrong") ? checked["wrong"] : Json(nullptr);
    json["min_us"] = digits(timing.least_s * half * 1e6);
    json["max_us"] = digits(timing.most_s * half * 1e6);
    json["samples"] = timing.samples;
    json["calls"] = timing.calls;
    if (op.what != BenchOp::What::collective) return json;
    json["algorithm"] = checked["algorithm"];
    if (settings_.explain) json["why"] = checked["why"];
    return json;
  }

  // Measures the fraction of a core that ranks use while they wait 1 s for rank 0 in a collective.
  void idle(const BenchOp& op) {
    constexpr double kSeconds = 1;
    note("idle");
    for (BenchTransport& side : sides_) {
      Communicator& group = side.group();
      group.run(CollCall{});
      const double cpu = cpu_seconds();
      if (group.index() == 0) usleep(static_cast<useconds_t>(kSeconds * 1e6));
      sum_of(group, 0);
      const double share = group.index() == 0 ? 0 : (cpu_seconds() - cpu) / kSeconds;
      Json row = head(op);
      row["transport"] = side.name();
      row["waited_s"] = kSeconds;
      row["core_percent"] = digits(100 * slowest_of(group, share));
      print(row);
    }
  }

  Json head(const BenchOp& op) const {
    Json row;
    row["op"] = op.name;
    row["transport"] = sides_[0].name();
    row["ranks"] = ranks();
    if (settings_.explain) row["plugin"] = sides_[0].plugin_file();
    return row;
  }

  // Records this rank's work, for the message if it fails.
  void note(const std::string& doing) {
    auto* text = static_cast<char*>(start_.recorder);
    text[doing.copy(text, kBenchNote - 1)] = '\0';
  }

  void print(const Json& row) const {
    if (start_.rank == 0) start_.launcher->print(row.dump());
  }

  const BenchSettings& settings_;
  std::vector<BenchTransport>& sides_;
  const RankStart& start_;
};

}  // namespace

int run_bench_rank(const RankStart& start, const std::vector<std::string>& plugin_dirs,
                   const std::string& algorithm_costs) {
  return be_rank(start, [&](std::string& where) {
    where = "joining";
    BenchOptions options = read_bench_words(unpack<std::vector<std::string>>(start.job));
    for (WorldOptions& side : options.bench.sides) {
      side.plugin_dirs = plugin_dirs;
      if (side.algorithm.empty() && side.transport_options == options.job.world.transport_options)
        side.algorithm_costs = algorithm_costs;
    }
    LauncherBootstrap bootstrap(*start.launcher, nullptr);
    std::vector<BenchTransport> sides;
    for (int i = 0; i < std::ssize(options.bench.sides); ++i) sides.emplace_back(options, i, start, bootstrap);
    for (BenchTransport& side : sides) side.connect();
    where.clear();
    Rows(options.bench, sides, start).run();
    for (BenchTransport& side : sides) sum_of(side.group(), 0);  // no rank leaves while another still waits for it
  });
}

}  // namespace prun
