#include "device/plugin_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "base/plugin_file.h"
#include "base/plugin_table.h"
#include "device/abi_op.h"
#include "device/queue_device.h"
#include "prun/layout.h"

namespace prun {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw usage_error(fmt::format("{}: {}", path, why));
}

#define PRUN_FUNCTION(name) {#name, offsetof(prun_device, name)},
constexpr PluginFunction kMandatory[] = {PRUN_DEVICE_MANDATORY(PRUN_FUNCTION)};
#undef PRUN_FUNCTION

static_assert(offsetof(prun_device, version) == offsetof(PluginTableHead, version));

prun_device checked_copy(const prun_device* theirs, const std::string& path) {
  prun_device table{};
  const std::string why = copy_plugin_table(theirs, &table, sizeof table, {"device", PRUN_DEVICE_ABI, kMandatory});
  if (!why.empty()) refuse(path, why);
  return table;
}

prun_device load(const std::string& file) {
  refuse_writable_by_others(file);
  std::string why;
  void* symbol = load_entry(file, "prun_device_v1", why);
  if (symbol == nullptr) refuse(file, why.rfind("it has", 0) == 0 ? "no prun device: " + why : why);
  const prun_device* theirs = reinterpret_cast<prun_device_entry>(symbol)(PRUN_DEVICE_ABI);
  if (theirs == nullptr) refuse(file, fmt::format("it cannot work with device ABI {}", PRUN_DEVICE_ABI));
  return checked_copy(theirs, file);
}

std::vector<DevicePluginFile> files_named(const char* extension) {
  std::vector<DevicePluginFile> found;
  for (const std::string& dir : device_directories()) {
    std::error_code ignored;
    if (!fs::is_directory(dir, ignored)) continue;
    refuse_writable_by_others(dir);
    for (const fs::directory_entry& entry : fs::directory_iterator(dir, ignored)) {
      if (entry.path().extension() != extension) continue;
      const std::string name = entry.path().stem().string();
      if (std::none_of(found.begin(), found.end(), [&](const DevicePluginFile& f) { return f.name == name; }))
        found.push_back({name, entry.path().string()});
    }
  }
  std::sort(found.begin(), found.end(),
            [](const DevicePluginFile& a, const DevicePluginFile& b) { return a.name < b.name; });
  return found;
}

// The device, stream and step values shared by the kernels of a TableDevice; opened with the first kernel.
struct Opened {
  Opened(const prun_device& table, const TableUse& use)
      : device(table, use.index, use.options),
        stream(device),
        values(device, sizeof(prun_step_values), PRUN_PLACE_DEVICE) {}
  QueueDevice device;
  DeviceStream stream;
  DeviceMemory values;
};

// The device's copy of the caller's arena on the host.
struct Mirror {
  Mirror(std::shared_ptr<Opened> device, const RankMemory& rank)
      : opened(std::move(device)),
        host(rank.arena),
        bytes(rank.program->arena_bytes),
        memory(opened->device, bytes, PRUN_PLACE_DEVICE) {}
  std::shared_ptr<Opened> opened;
  std::byte* host;
  int64_t bytes;
  DeviceMemory memory;
};

// Copies the arena to the device, runs, copies it back and waits.
class WaitingKernel final : public Kernel {
 public:
  WaitingKernel(std::shared_ptr<Mirror> arena, const RankMemory& memory, const Op& op, int threads, bool captured)
      : arena_(std::move(arena)), table_(memory.table), kernel_(device(), abi(memory, op, threads).get()) {
    if (captured) capture();
  }
  void run() override {
    DeviceStream& stream = arena_->opened->stream;
    prun_step_values values{};
    if (table_ != nullptr) values = *table_;
    stream.copy(arena_->opened->values.get(), &values, sizeof values);
    stream.copy(arena_->memory.get(), arena_->host, arena_->bytes);
    if (graph_.get() != nullptr)
      graph_.launch(stream);
    else
      kernel_.run(stream);
    stream.copy(arena_->host, arena_->memory.get(), arena_->bytes);
    stream.wait();
  }

 private:
  QueueDevice& device() const { return arena_->opened->device; }
  AbiOp abi(RankMemory memory, const Op& op, int threads) const {
    memory.arena = arena_->memory.get();
    return AbiOp(memory, op, threads, reinterpret_cast<const prun_step_values*>(arena_->opened->values.get()));
  }
  void capture() {
    DeviceCapture capture(device(), arena_->opened->stream);
    kernel_.run(arena_->opened->stream);
    graph_ = capture.finish();
  }
  std::shared_ptr<Mirror> arena_;
  const StepTable* table_;
  DeviceKernel kernel_;
  DeviceGraph graph_;
};

class TableDevice final : public Device {
 public:
  TableDevice(const prun_device& table, TableUse use) : table_(table), use_(std::move(use)) {}
  std::string_view name() const override { return table_.name; }
  prun_mem_kind memory_kind() const override { return static_cast<prun_mem_kind>(table_.mem_kind); }
  const prun_device* queue() const override { return &table_; }

  int64_t workspace_bytes(const Program& program, const Op& op, int threads) const override {
    RankMemory memory;
    memory.program = &program;
    size_t bytes = 0;
    prun_result result{.size = sizeof(prun_result), .culprit = -1, .message = {}};
    const AbiOp sizes(memory, op, threads, nullptr, use_.options.c_str());
    const prun_status status = table_.workspace(&sizes.get(), &bytes, &result);
    if (status == PRUN_EINVAL && !use_.options.empty())
      throw usage_error(fmt::format("--device-options {}: {}", use_.options, result.message));
    if (status != PRUN_OK) return 0;  // `supports` has the reason
    return round_up(static_cast<int64_t>(bytes), kAlignBytes);
  }
  bool supports(const Op& op, const Program& program) const override {
    RankMemory memory;
    memory.program = &program;
    prun_result result{.size = sizeof(prun_result), .culprit = -1, .message = {}};
    return table_.supports(&AbiOp(memory, op, 1, nullptr, use_.options.c_str()).get(), &result) == PRUN_OK;
  }
  bool fuses(std::string_view kind) const override {
    if (table_.ext == nullptr) return false;
    const auto* fusion = static_cast<const prun_device_fusion*>(table_.ext(PRUN_DEVICE_FUSION));
    return fusion != nullptr && fusion->wants(std::string(kind).c_str()) != 0;
  }
  int64_t vocabulary_multiple() const override {
    if (table_.ext == nullptr) return 1;
    const auto* layout = static_cast<const prun_device_layout*>(table_.ext(PRUN_DEVICE_LAYOUT));
    return layout != nullptr ? std::max<int64_t>(1, layout->vocabulary_multiple) : 1;
  }
  std::unique_ptr<Kernel> make_kernel(const RankMemory& memory, const Op& op, int threads) const override {
    PRUN_CHECK(memory.arena != nullptr, "no memory");
    std::lock_guard lock(mutex_);
    if (opened_ == nullptr) opened_ = std::make_shared<Opened>(table_, use_);
    std::weak_ptr<Mirror>& known = mirrors_[memory.arena];
    std::shared_ptr<Mirror> arena = known.lock();
    if (arena == nullptr) known = arena = std::make_shared<Mirror>(opened_, memory);
    return std::make_unique<WaitingKernel>(std::move(arena), memory, op, threads, use_.captured);
  }

 private:
  const prun_device& table_;
  const TableUse use_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<Opened> opened_;
  mutable std::map<void*, std::weak_ptr<Mirror>> mirrors_;  // by the arena's address
};

}  // namespace

std::vector<std::string> device_directories() {
  return plugin_folders("PRUN_DEVICE_PATH", "/proc/self/exe", "lib/prun/devices");
}

std::vector<DevicePluginFile> find_device_plugins() { return files_named(".so"); }
std::vector<DevicePluginFile> unbuilt_device_plugins() { return files_named(".missing"); }

std::string why_unbuilt(const DevicePluginFile& file) {
  if (!fs::is_regular_file(file.path)) return "its reason is no regular file";
  std::string line;
  std::getline(std::ifstream(file.path), line);
  return line;
}

const prun_device& load_device_plugin(const DevicePluginFile& file) {
  static std::mutex mutex;
  static auto* loaded = new std::map<std::string, prun_device>;  // never unloaded
  std::lock_guard lock(mutex);
  const auto at = loaded->find(file.path);
  return at != loaded->end() ? at->second : loaded->emplace(file.path, load(file.path)).first->second;
}

std::unique_ptr<Device> make_table_device(const prun_device& table, TableUse use) {
  return std::make_unique<TableDevice>(table, std::move(use));
}

}  // namespace prun
