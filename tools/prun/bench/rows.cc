// Rows in the order of the options: operation, type, reduction, size. Both sides' memory is allocated before either
// connects; a side's two buffers lie in one arena, as a program's tensors do.
#include "bench/rows.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/text.h"
#include "bench/data.h"
#include "bench/measure.h"
#include "bench/ops.h"
#include "bench/settings.h"
#include "comm/call.h"
#include "comm/plugin.h"
#include "link_bootstrap.h"
#include "plugin_path.h"
#include "rank.h"

namespace prun {
namespace {

using Json = nlohmann::ordered_json;

// Between the two buffers. Power-of-two distances collide in the caches; and a load a few lines ahead of a store, by
// the low 12 bits of their addresses, waits for it.
constexpr int64_t kApart = 8192 - 5 * kAlignBytes;

// Six digits count; JSON would print all that a double has.
double digits(double value) { return std::stod(fmt::format("{:.6g}", value)); }

std::vector<std::string> unpack_words(std::string_view packed) {
  std::vector<std::string> words;
  for (size_t end; (end = packed.find('\0')) != std::string_view::npos; packed.remove_prefix(end + 1))
    words.emplace_back(packed.substr(0, end));
  return words;
}

// A transport that is measured: its world, the group of all ranks, two buffers.
class Side {
 public:
  Side(const BenchSide& chosen, const BenchSettings& settings, const RankStart& start, Bootstrap& bootstrap,
       const std::vector<std::string>& plugin_dirs, size_t number)
      : chosen_(chosen) {
    NamedPlugin plugin = name_plugin(chosen.transport, plugin_dirs);
    WorldOptions options;
    options.rank = start.rank;
    options.ranks = start.ranks;
    options.local_rank = start.local_rank;
    options.local_ranks = start.local_ranks;
    options.transport = plugin.name;
    options.transport_options = chosen.options;
    options.plugin_dirs = plugin_dirs_ = plugin.dirs;
    options.job_id = fmt::format("{}{}", start.job_id, number == 0 ? "" : "b");
    options.job_secret = start.job_secret;
    options.network_interface = settings.network_interface;
    options.algorithm = chosen.algorithm;
    options.deadline_s = settings.timeout_s;
    world_ = World::open(options, bootstrap);
    const int64_t room = round_up(std::max<int64_t>(settings.most_bytes(), 8 * start.ranks), 4096) + kApart;
    if (settings.foreign) {
      foreign_.resize(static_cast<size_t>(2 * room));
      send_ = foreign_.data();
    } else {
      send_ = static_cast<char*>(world_->allocate(2 * room));
    }
    std::memset(send_, 1, static_cast<size_t>(2 * room));
    recv_ = send_ + room;
    ranks_.resize(static_cast<size_t>(start.ranks));
    std::iota(ranks_.begin(), ranks_.end(), 0);
  }

  void connect() {
    world_->connect();
    group_ = &world_->communicator(ranks_, 0);
  }

  // `call` with this side's buffers.
  CollCall placed(CollCall call, bool in_place) const {
    const int64_t mine = group_->index() * call.count * dtype_bytes(call.dtype);
    call.send = in_place ? recv_ : send_;
    call.recv = recv_;
    if (in_place && call.kind == CollKind::all_gather) call.send = recv_ + mine;
    if (in_place && call.kind == CollKind::reduce_scatter) call.recv = recv_ + mine;
    return call;
  }

  void run(const BenchOp& op, const CollCall& call) const {
    const int64_t bytes = call.count * dtype_bytes(call.dtype);
    const int me = group_->index(), n = group_->size();
    switch (op.what) {
      case BenchOp::What::collective:
        group_->run(call);
        break;
      case BenchOp::What::send_recv:
        group_->send_recv((me + 1) % n, call.send, bytes, (me + n - 1) % n, call.recv, bytes);
        break;
      case BenchOp::What::ping_pong:  // there and back
        if (me == 0) group_->send_recv(1, call.send, bytes, -1, nullptr, 0);
        if (me < 2) group_->send_recv(-1, nullptr, 0, 1 - me, call.recv, bytes);
        if (me == 1) group_->send_recv(0, call.send, bytes, -1, nullptr, 0);
        break;
      case BenchOp::What::idle:
        break;
    }
  }

  Communicator& group() const { return *group_; }
  const BenchSide& chosen() const { return chosen_; }
  std::string transport() const { return world_->transport_name(); }
  // The file that was loaded; "" where it is not one plugin.
  std::string plugin_file() const {
    for (const PluginFile& file : find_plugins(plugin_dirs_)) {
      if (file.name == transport()) return file.path;
    }
    return "";
  }

 private:
  BenchSide chosen_;
  std::unique_ptr<World> world_;
  std::vector<char> foreign_;
  char *send_ = nullptr, *recv_ = nullptr;
  std::vector<std::string> plugin_dirs_;
  std::vector<int> ranks_;
  Communicator* group_ = nullptr;
};

double cpu_seconds() {
  timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

class Rows {
 public:
  Rows(const BenchSettings& settings, std::vector<Side>& sides, const RankStart& start)
      : settings_(settings), sides_(sides), start_(start) {}

  void run() {
    for (const std::string& name : settings_.ops) {
      const BenchOp& op = find_bench_op(name);
      if (op.what == BenchOp::What::idle) {
        idle(op);
        continue;
      }
      const bool reduces = op.what == BenchOp::What::collective && is_reduction(op.kind);
      for (Dtype dtype : op.sized ? settings_.dtypes : std::vector{Dtype::u8})
        for (RedOp redop : reduces ? settings_.redops : std::vector{RedOp::sum}) sizes(op, dtype, redop);
    }
  }

 private:
  int ranks() const { return start_.ranks; }

  void sizes(const BenchOp& op, Dtype dtype, RedOp redop) {
    std::set<int64_t> counts;  // small sizes are one element each
    for (int64_t bytes : op.sized ? settings_.bytes : std::vector<int64_t>{0}) {
      CollCall call = call_of(op, bytes, dtype, redop, settings_.root, ranks());
      call.rank_order = settings_.rank_order && op.what == BenchOp::What::collective && is_reduction(op.kind);
      if (counts.insert(call.count).second) row(op, call);
    }
  }

  void row(const BenchOp& op, const CollCall& call) {
    Json row = head(op);
    const int64_t bytes =
        op.what == BenchOp::What::collective ? call_bytes(call, ranks()) : call.count * dtype_bytes(call.dtype);
    const bool reduces = op.what == BenchOp::What::collective && is_reduction(op.kind);
    row["bytes"] = bytes;
    row["count"] = call.count;
    row["dtype"] = op.sized ? Json(dtype_name(call.dtype)) : Json(nullptr);
    row["redop"] = reduces ? Json(redop_name(call.redop)) : Json(nullptr);
    row["root"] = op.what == BenchOp::What::collective && is_rooted(op.kind) ? Json(call.root) : Json(nullptr);
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

  // Of each side.
  std::vector<Json> measure(const BenchOp& op, const CollCall& plain, const BenchData& data, int64_t bytes,
                            bool in_place) {
    note(fmt::format("{} of {}{}", op.name, human_bytes(bytes), in_place ? " in place" : ""));
    std::vector<Timed> timed;
    std::vector<Json> measured(sides_.size());
    for (size_t s = 0; s < sides_.size(); ++s) {
      const Side& side = sides_[s];
      const CollCall call = side.placed(plain, in_place);
      if (settings_.check) measured[s]["wrong"] = wrong(op, side, call, data);
      timed.push_back({&side.group(), [&op, &side, call] { side.run(op, call); }});
    }
    std::vector<Timing> timings = time_in_turn(timed, settings_);
    for (size_t s = 0; s < sides_.size(); ++s)
      measured[s] = figures(op, sides_[s], plain, bytes, timings[s], measured[s]);
    return measured;
  }

  int64_t wrong(const BenchOp& op, const Side& side, const CollCall& call, const BenchData& data) {
    const int me = side.group().index();
    data.fill(me, call);
    side.run(op, call);
    return sum_of(side.group(), data.wrong(me, call));
  }

  Json figures(const BenchOp& op, const Side& side, const CollCall& call, int64_t bytes, const Timing& timing,
               const Json& checked) {
    const double half = op.what == BenchOp::What::ping_pong ? 0.5 : 1;  // one way
    const double seconds = timing.median_s * half;
    const double algbw = static_cast<double>(bytes) / seconds / 1e9;
    Json json;
    if (sides_.size() == 2) {
      json["transport"] = side.transport();
      json["transport_options"] = side.chosen().options;
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
    const CollPath path = side.group().path_of(call);
    json["algorithm"] = path.algorithm;
    if (settings_.explain) json["why"] = path.why;
    return json;
  }

  // Ranks that wait a second in a collective for rank 0: the share of a core that they use meanwhile.
  void idle(const BenchOp& op) {
    constexpr double kSeconds = 1;
    note("idle");
    for (Side& side : sides_) {
      Communicator& group = side.group();
      group.run(CollCall{});
      const double cpu = cpu_seconds();
      if (group.index() == 0) usleep(static_cast<useconds_t>(kSeconds * 1e6));
      sum_of(group, 0);
      const double share = group.index() == 0 ? 0 : (cpu_seconds() - cpu) / kSeconds;
      Json row = head(op);
      row["transport"] = side.transport();
      row["waited_s"] = kSeconds;
      row["core_percent"] = digits(100 * slowest_of(group, share));
      print(row);
    }
  }

  Json head(const BenchOp& op) const {
    Json row;
    row["op"] = op.name;
    row["transport"] = sides_[0].transport();
    row["ranks"] = ranks();
    if (settings_.explain) row["plugin"] = sides_[0].plugin_file();
    return row;
  }

  // For the message when this rank fails.
  void note(const std::string& doing) {
    auto* text = static_cast<char*>(start_.recorder);
    text[doing.copy(text, kBenchNote - 1)] = '\0';
  }

  void print(const Json& row) const {
    if (start_.rank == 0) start_.link->print(row.dump());
  }

  const BenchSettings& settings_;
  std::vector<Side>& sides_;
  const RankStart& start_;
};

}  // namespace

std::string pack_words(const std::vector<std::string>& words) {
  std::string packed;
  for (const std::string& word : words) packed += word + '\0';
  return packed;
}

int run_bench_rank(const RankStart& start, const std::vector<std::string>& plugin_dirs) {
  return be_rank(start, [&](std::string& where) {
    where = "joining";
    const BenchSettings settings = parse_bench(unpack_words(start.job));
    LinkBootstrap bootstrap(*start.link);
    std::vector<Side> sides;
    for (const BenchSide& side : settings.sides)
      sides.emplace_back(side, settings, start, bootstrap, plugin_dirs, sides.size());
    for (Side& side : sides) side.connect();
    where.clear();
    Rows(settings, sides, start).run();
    for (Side& side : sides) sum_of(side.group(), 0);  // nobody leaves while another still waits for it
  });
}

}  // namespace prun
