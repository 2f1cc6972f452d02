// A file may include another one and then override fields: every field is read over the existing value.
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "ir/op_def.h"
#include "simulate/cluster.h"

namespace prun::simulate {
namespace {

constexpr int kMostNodes = 100000;
// Names of the core's algorithms for collectives (comm/collectives/algorithm.cc).
constexpr const char* kAlgorithmNames[] = {"gather", "direct", "doubling", "halving", "ring",
                                           "bruck",  "tree",   "chain",    "pairwise"};

[[noreturn]] void fail_at(const std::string& file, const YAML::Mark& mark, const std::string& what) {
  throw usage_error(fmt::format("{}:{}:{}: {}", file, mark.line + 1, mark.column + 1, what));
}

std::string kind_of(const YAML::Node& node) {
  return node.IsMap() ? "a map" : node.IsSequence() ? "a list" : node.IsNull() ? "nothing" : "a value";
}

// A map that rejects unknown keys.
class Fields {
 public:
  using Read = std::function<void(const YAML::Node&)>;
  Fields(const std::string& file, const YAML::Node& map, std::string what)
      : file_(file), map_(map), what_(std::move(what)) {
    if (!map.IsMap()) fail(map, fmt::format("{} is {}; it must be a map of fields", what_, kind_of(map)));
  }
  Fields& field(const std::string& name, Read read) {
    fields_.emplace_back(name, std::move(read));
    return *this;
  }
  Fields& number(const std::string& name, double& value, Unit unit = Unit::none, double least = 0) {
    return field(name, [this, name, &value, unit, least](const YAML::Node& node) {
      value = quantity(node, name, unit);
      if (value < least || (least == 0 && value == 0 && unit != Unit::seconds))
        fail(node,
             fmt::format("{} is {}, should be {} {}", name, node.Scalar(), least == 0 ? "above" : "at least", least));
    });
  }
  Fields& part(const std::string& name, double& value) {
    return field(name, [this, name, &value](const YAML::Node& node) {
      value = quantity(node, name, Unit::none);
      if (value <= 0 || value > 1)
        fail(node, fmt::format("{} is {}, should be a part: above 0, at most 1", name, node.Scalar()));
    });
  }
  Fields& whole(const std::string& name, int& value) {
    return field(name, [this, name, &value](const YAML::Node& node) { value = count(node, name); });
  }
  Fields& flag(const std::string& name, bool& value) {
    return field(name, [this, name, &value](const YAML::Node& node) {
      const std::string word = scalar(node, name);
      if (word != "true" && word != "false")
        fail(node, fmt::format("{} is '{}', should be true or false", name, printable(word)));
      value = word == "true";
    });
  }
  Fields& text(const std::string& name, std::string& value) {
    return field(name, [this, name, &value](const YAML::Node& node) { value = scalar(node, name); });
  }

  void read() {
    std::vector<std::string> names;
    for (const auto& [name, read] : fields_) names.push_back(name);
    std::set<std::string> seen;
    for (const auto& pair : map_) {
      const std::string key = pair.first.IsScalar() ? pair.first.Scalar() : "";
      const auto found = std::find(names.begin(), names.end(), key);
      if (found == names.end())
        fail(pair.first, fmt::format("{} has no field '{}'{}", what_, printable(key), did_you_mean(key, names)));
      if (!seen.insert(key).second) fail(pair.first, fmt::format("{} has '{}' twice", what_, key));
      fields_[found - names.begin()].second(pair.second);
    }
  }

  [[noreturn]] void fail(const YAML::Node& node, const std::string& what) const { fail_at(file_, node.Mark(), what); }
  std::string scalar(const YAML::Node& node, const std::string& name) const {
    if (!node.IsScalar()) fail(node, fmt::format("{} is {}, should be one value", name, kind_of(node)));
    return node.Scalar();
  }
  double quantity(const YAML::Node& node, const std::string& name, Unit unit) const {
    const std::string text = scalar(node, name);
    try {
      return read_quantity(text, unit);
    } catch (const Error& error) {
      fail(node, fmt::format("{}: {}", name, printable(error.message())));
    }
  }
  int count(const YAML::Node& node, const std::string& name) const {
    const double value = quantity(node, name, Unit::none);
    if (value < 1 || value > kMostNodes || value != static_cast<int>(value))
      fail(node, fmt::format("{} is {}, should be a whole number from 1 to {}", name, node.Scalar(), kMostNodes));
    return static_cast<int>(value);
  }

 private:
  const std::string& file_;
  YAML::Node map_;
  std::string what_;
  std::vector<std::pair<std::string, Read>> fields_;
};

class Reader {
 public:
  Cluster read(const std::string& path, bool whole) {
    cluster_.path = path;
    read_file(path);
    if (whole) require_all();
    return std::move(cluster_);
  }

 private:
  void read_file(const std::string& path) {
    std::error_code error;
    const std::string real = std::filesystem::weakly_canonical(path, error).string();
    if (std::find(open_.begin(), open_.end(), real) != open_.end())
      throw usage_error(fmt::format("{} includes itself: {}", path, join(names_, " includes ") + " includes " + path));
    open_.push_back(real);
    names_.push_back(path);
    std::ifstream in(path);
    const bool file = open_.size() == 1 ? !std::filesystem::is_directory(path, error)
                                        : std::filesystem::is_regular_file(path, error);  // no pipe or device
    if (!in || !file) throw usage_error(fmt::format("cannot read the cluster file {}", path));
    YAML::Node root;
    try {
      root = YAML::Load(in);
    } catch (const YAML::Exception& wrong) {
      fail_at(path, wrong.mark, wrong.msg);
    }
    if (!root.IsMap()) throw usage_error(fmt::format("{} is not a cluster file: it must be a map of fields", path));
    if (root["include"]) {
      if (!root["include"].IsScalar()) fail_at(path, root["include"].Mark(), "include must be the path of one file");
      const std::string other = root["include"].Scalar();
      read_file((std::filesystem::path(path).parent_path() / other).string());
    }
    read_root(path, root);
    open_.pop_back();
    names_.pop_back();
  }

  void read_root(const std::string& path, const YAML::Node& root) {
    YAML::Node nodes;
    Fields fields(path, root, "the cluster");
    fields.text("name", cluster_.name)
        .field("include", [](const YAML::Node&) {})
        .field("device", [&](const YAML::Node& node) { read_device(path, node, cluster_.device); })
        .field("node", [&](const YAML::Node& node) { read_node(path, node, cluster_.node, false); })
        .field("bus", [&](const YAML::Node& node) { read_link(path, node, cluster_.bus, "bus"); })
        .field("network", [&](const YAML::Node& node) { read_network(path, node); })
        .field("transports", [&](const YAML::Node& node) { read_transports(path, node); })
        .number("collective", cluster_.collective_s, Unit::seconds)
        .part("tree_bandwidth", cluster_.tree_bandwidth)
        .field("nodes", [&](const YAML::Node& node) { nodes.reset(node); })
        .read();
    cluster_.node.device = cluster_.device;
    if (root["nodes"]) read_nodes(path, nodes);
  }

  void read_device(const std::string& path, const YAML::Node& node, DeviceModel& device) {
    Fields fields(path, node, "a device");
    fields.text("name", device.name)
        .field("peak", [&](const YAML::Node& peak) { read_peak(path, peak, device); })
        .part("sustained", device.sustained)
        .number("half_k", device.half_k)
        .whole("multiprocessors", device.multiprocessors)
        .number("memory", device.memory_bytes, Unit::bytes)
        .number("memory_bandwidth", device.memory_bandwidth, Unit::bandwidth)
        .part("memory_efficiency", device.memory_efficiency)
        .part("flash", device.flash)
        .number("launch", device.launch_s, Unit::seconds)
        .number("optimizer_bytes", device.optimizer_bytes)
        .number("loss_bytes", device.loss_bytes)
        .number("bus_slowdown", device.bus_slowdown, Unit::none, 1)
        .number("network_slowdown", device.network_slowdown, Unit::none, 1)
        .flag("fused", device.fused)
        .number("speed", device.speed)
        .flag("shared_cores", device.shared_cores)
        .number("wake", device.wake_s, Unit::seconds)
        .field("ops", [&](const YAML::Node& ops) { read_ops(path, ops, device); })
        .field("jitter",
               [&](const YAML::Node& jitter) {
                 device.jitter = fields.quantity(jitter, "jitter", Unit::none);
                 if (device.jitter < 0 || device.jitter > 1)
                   fields.fail(jitter, fmt::format("jitter is {}, should be from 0 to 1", jitter.Scalar()));
               })
        .read();
  }

  // Reads { linear: { f32: { launch: .., rate: .., bandwidth: .. } } }
  void read_ops(const std::string& path, const YAML::Node& node, DeviceModel& device) {
    Fields kinds(path, node, "ops");
    for (const OpDef* kind : all_ops())
      kinds.field(std::string(kind->name), [&, kind](const YAML::Node& of) {
        Fields dtypes(path, of, fmt::format("the op {}", kind->name));
        for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16})
          dtypes.field(std::string(dtype_name(dtype)), [&, kind, dtype](const YAML::Node& rates) {
            OpRates& op = device.ops[{std::string(kind->name), dtype}] = {};
            Fields fields(path, rates, "a measured op");
            fields.number("launch", op.launch_s, Unit::seconds)
                .field("rate", [&](const YAML::Node& at) { read_curve(fields, at, "rate", Unit::flops, op.rate); })
                .field(
                    "bandwidth",
                    [&](const YAML::Node& at) { read_curve(fields, at, "bandwidth", Unit::bandwidth, op.bandwidth); })
                .read();
          });
        dtypes.read();
      });
    kinds.read();
  }

  void read_peak(const std::string& path, const YAML::Node& node, DeviceModel& device) {
    Fields fields(path, node, "peak");
    for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16})
      fields.number(std::string(dtype_name(dtype)), device.peak[static_cast<size_t>(dtype)], Unit::flops);
    fields.read();
  }

  void read_link(const std::string& path, const YAML::Node& node, LinkModel& link, const std::string& name) {
    if (link.name.empty()) link.name = name;
    Fields fields(path, node, fmt::format("the {}", name));
    fields.text("name", link.name)
        .number("bandwidth", link.bandwidth, Unit::bandwidth)
        .number("step", link.step_s, Unit::seconds)
        .number("tree_step", link.tree_step_s, Unit::seconds)
        .number("message", link.message_s, Unit::seconds)
        .part("message_efficiency", link.message_efficiency)
        .whole("channels", link.channels)
        .field("collectives",
               [&](const YAML::Node& of) {
                 each_collective(path, of, [&](CollKind kind, const YAML::Node& rates) {
                   link.collectives[kind] = read_rates(path, rates);
                 });
               })
        .field("algorithms", [&](const YAML::Node& of) {
          each_collective(path, of, [&](CollKind kind, const YAML::Node& names) {
            Fields algorithms(path, names, fmt::format("the algorithms of {}", traits(kind).name));
            for (const char* each : kAlgorithmNames)
              algorithms.field(each, [&, kind, each](const YAML::Node& rates) {
                link.algorithms[kind][each] = read_rates(path, rates);
              });
            algorithms.read();
          });
        });
    if (name == "network") fields.whole("nodes", link.nodes);
    fields.read();
  }

  template <class Use>
  void each_collective(const std::string& path, const YAML::Node& node, const Use& use) {
    Fields fields(path, node, "collectives");
    for (int i = 0; i < kCollKinds; ++i) {
      const CollKind kind = static_cast<CollKind>(i);
      fields.field(std::string(traits(kind).name), [&use, kind](const YAML::Node& of) { use(kind, of); });
    }
    fields.read();
  }

  CollectiveRates read_rates(const std::string& path, const YAML::Node& node) {
    CollectiveRates rates;
    Fields fields(path, node, "a measured collective");
    fields.number("step", rates.step_s, Unit::seconds)
        .field("bandwidth",
               [&](const YAML::Node& of) { read_curve(fields, of, "bandwidth", Unit::bandwidth, rates.bandwidth); })
        .read();
    if (rates.bandwidth.at.empty()) fail_at(path, node.Mark(), "a measured collective lacks bandwidth");
    return rates;
  }

  // Reads "5 GB/s", or { 64 KiB: 8 GB/s, 4 MiB: 5 GB/s }
  static void read_curve(const Fields& fields, const YAML::Node& node, const std::string& name, Unit unit,
                         Curve& curve) {
    const auto speed = [&](const YAML::Node& of) {
      const double value = fields.quantity(of, name, unit);
      if (value <= 0) fields.fail(of, fmt::format("{} is {}, should be above 0", name, of.Scalar()));
      return value;
    };
    curve.at.clear();
    if (!node.IsMap()) {
      curve.at = {{0, speed(node)}};
      return;
    }
    for (const auto& pair : node) {
      const double bytes = fields.quantity(pair.first, name + ": a size", Unit::bytes);
      if (bytes <= (curve.at.empty() ? 0 : curve.at.back().first))
        fields.fail(pair.first, fmt::format("sizes of {} must be in ascending order and above 0", name));
      curve.at.emplace_back(bytes, speed(pair.second));
    }
    if (curve.at.empty()) fields.fail(node, fmt::format("{} has no size", name));
  }

  // Reads links by transport name, one of which is the bus.
  void read_transports(const std::string& path, const YAML::Node& node) {
    if (!node.IsMap()) fail_at(path, node.Mark(), "transports is a map of links, by name");
    for (const auto& pair : node) {
      const std::string name = pair.first.IsScalar() ? pair.first.Scalar() : "";
      LinkModel& link = cluster_.transports[name];
      read_link(path, pair.second, link, "transport " + name);
      if (link.bandwidth <= 0) fail_at(path, pair.second.Mark(), "a transport lacks bandwidth");
    }
  }

  void read_network(const std::string& path, const YAML::Node& node) {
    if (!node.IsSequence()) {
      cluster_.network.resize(1);
      read_link(path, node, cluster_.network[0], "network");
      return;
    }
    if (node.size() < 1 || node.size() > 3)
      fail_at(path, node.Mark(), fmt::format("network has {} levels, should have 1 to 3", node.size()));
    cluster_.network.assign(node.size(), {});
    for (size_t level = 0; level < node.size(); ++level) {
      LinkModel& link = cluster_.network[level];
      read_link(path, node[level], link, "network");
      if (level > 0 && link.nodes != 0 && link.nodes <= cluster_.network[level - 1].nodes)
        fail_at(path, node[level].Mark(),
                "network levels must be listed from the innermost: this one has no more nodes than the one before");
      if (level + 1 < node.size() && link.nodes == 0)
        fail_at(path, node[level].Mark(),
                "a network level below others needs the field nodes, the number of nodes inside it");
    }
  }

  void read_node(const std::string& path, const YAML::Node& node, NodeModel& of, bool listed, int* count = nullptr) {
    Fields fields(path, node, "a node");
    fields.whole("devices", of.devices)
        .whole("nics", of.nics)
        .part("bus_speed", of.bus_speed)
        .part("network_speed", of.network_speed);
    if (listed) {
      fields.whole("count", *count)
          .field("host", [&](const YAML::Node& host) { of.host = read_host(fields, host); })
          .field("device", [&](const YAML::Node& device) { read_device(path, device, of.device); })
          .field("slow", [&](const YAML::Node& slow) { read_slow(path, slow, of); });
    }
    fields.read();
  }

  static std::string read_host(const Fields& fields, const YAML::Node& node) {
    std::string name = fields.scalar(node, "host");
    const bool allowed = std::all_of(name.begin(), name.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || std::string_view("-_.:").find(static_cast<char>(c)) != std::string_view::npos;
    });
    if (name.empty() || !allowed || name.front() == '-')
      fields.fail(node, fmt::format("host is '{}', should be a host's name or address", printable(name)));
    return name;
  }

  // Reads { 3: 0.5 }: device 3 of the node runs at half of its speed.
  void read_slow(const std::string& path, const YAML::Node& node, NodeModel& of) {
    Fields check(path, node, "slow");
    for (const auto& pair : node) {
      const double device = check.quantity(pair.first, "slow: a device's number", Unit::none);
      const double speed = check.quantity(pair.second, "slow", Unit::none);
      if (device != static_cast<int>(device) || device >= of.devices)
        check.fail(pair.first, fmt::format("slow names device {} of {}", pair.first.Scalar(), of.devices));
      if (speed <= 0 || speed > 1)
        check.fail(pair.second, fmt::format("slow is {}, should be a part: above 0, at most 1", pair.second.Scalar()));
      of.slow.emplace_back(static_cast<int>(device), speed);
    }
  }

  void read_nodes(const std::string& path, const YAML::Node& node) {
    cluster_.nodes.clear();
    if (node.IsScalar()) {
      const int count = Fields(path, YAML::Node(YAML::NodeType::Map), "nodes").count(node, "nodes");
      cluster_.nodes.assign(count, cluster_.node);
      return;
    }
    if (!node.IsSequence()) fail_at(path, node.Mark(), "nodes is a number of nodes, or a list of them");
    if (node.size() == 0)
      fail_at(path, node.Mark(), "nodes is an empty list; omit it to get as many nodes as a job needs");
    for (const YAML::Node& item : node) {
      NodeModel of = cluster_.node;
      int count = 1;
      of.place = fmt::format("{}:{}:{}", path, item.Mark().line + 1, item.Mark().column + 1);
      read_node(path, item, of, true, &count);
      if (count > 1 && !of.host.empty())
        fail_at(path, item.Mark(), fmt::format("host '{}' is one node, and count is {}", of.host, count));
      if (std::ssize(cluster_.nodes) + count > kMostNodes)
        fail_at(path, item.Mark(), fmt::format("these are more than {} nodes", kMostNodes));
      cluster_.nodes.insert(cluster_.nodes.end(), count, of);
    }
  }

  void require_all() const {
    const auto require = [&](bool there, const char* field) {
      if (!there) throw usage_error(fmt::format("{} lacks {}", cluster_.path, field));
    };
    const DeviceModel& device = cluster_.device;
    const bool only_hosts = !cluster_.nodes.empty() && !cluster_.nodes[0].host.empty() && device == DeviceModel() &&
                            cluster_.nodes[0].device == DeviceModel();
    if (only_hosts)
      throw usage_error(
          fmt::format("{} only lists hosts; a prediction also needs their device, bus and network: add a line "
                      "`include: dgx-a100.yaml`, or another file of plans/clusters",
                      cluster_.path));
    require(*std::max_element(device.peak.begin(), device.peak.end()) > 0, "device: peak");
    require(device.memory_bandwidth > 0, "device: memory_bandwidth");
    require(device.memory_bytes > 0, "device: memory");
    require(cluster_.bus.bandwidth > 0, "bus: bandwidth");
    for (const LinkModel& link : cluster_.network) require(link.bandwidth > 0, "network: bandwidth");
    require(!cluster_.network.empty() || cluster_.nodes.size() == 1, "network: bandwidth (or `nodes: 1`)");
  }

  Cluster cluster_;
  std::vector<std::string> open_, names_;
};

}  // namespace

Cluster read_cluster(const std::string& path) { return Reader().read(path, true); }

Cluster read_hosts(const std::string& path) { return Reader().read(path, false); }

}  // namespace prun::simulate
