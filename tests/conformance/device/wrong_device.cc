// A small correct device, with threads as streams and one op; the option way=NAME adds one fault, which the suite must
// find (wrong_devices_test.py). Options are read at open, so earlier calls are correct.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "prun/sdk/device.h"
#include "runtime/kernels/cpu_queue/streams.h"

namespace cpu_queue = prun::cpu_queue;
using prun::sdk::Failure;

namespace {

const char* const kWays[] = {"",      "zero",   "early",   "edges",   "captured", "once",     "kept",
                             "scale", "random", "now",     "aligned", "blocks",   "messages", "twice",
                             "calls", "late",   "crashes", "hangs",   "closes"};

class Wrong {
 public:
  using Stream = cpu_queue::Stream;
  using Graph = cpu_queue::Graph;
  struct Event {
    cpu_queue::Event state = std::make_shared<cpu_queue::EventState>();
  };
  struct Kernel {
    const float* x;
    float* y;
    int64_t n;
    float factor;
  };

  explicit Wrong(const prun_device_params& params) {
    const std::string options = params.options;
    way_ = options.substr(std::min<size_t>(4, options.size()));
    const bool known = options.empty() || options == "way=" + way_;
    if (!known || std::find(std::begin(kWays), std::end(kWays), way_) == std::end(kWays))
      throw Failure(PRUN_EINVAL, "there is no option " + options);
  }
  ~Wrong() {
    for (void* ptr : memory_) std::free(ptr);
  }
  bool is(const char* way) const { return way_ == way; }

  static void probe(prun_device_probe& probe) { probe.devices = 1; }
  static void describe(int index, prun_device_info& info) {
    if (index != 0) throw Failure(PRUN_ENOTSUP, "there is one");
    prun::sdk::copy_text("wrong", info.name, sizeof info.name);
    info.total_bytes = info.free_bytes = 1 << 28;
  }
  static std::string why_refused(const prun_op& op) {
    if (strcmp(op.kind, "scale") == 0 && op.reads[0].dtype == PRUN_F32) return "";
    return std::string("only scale of f32 is there, no ") + op.kind;
  }
  static size_t workspace(const prun_op&) { return 0; }

  void* alloc(size_t bytes, int) {
    const size_t align = is("aligned") ? 16 : 256;
    if (bytes > size_t{1} << 40) throw Failure(PRUN_ENOMEM, is("messages") ? "" : "so much is not there");
    memory_.push_back(std::aligned_alloc(align, (bytes + align - 1) / align * align));
    return memory_.back();
  }
  void free(void* ptr, int) { std::erase(memory_, ptr), std::free(ptr); }
  void memory_info(uint64_t& free_bytes, uint64_t& total_bytes) { free_bytes = total_bytes = 1 << 28; }

  std::unique_ptr<Stream> stream_create(int) { return std::make_unique<Stream>(); }
  prun_queue stream_queue(Stream&) { return {PRUN_MEM_HOST, nullptr}; }
  bool stream_test(Stream& stream) { return stream.idle(); }
  void stream_wait(Stream& stream) {
    while (is("hangs")) pause();
    stream.wait();
  }

  std::unique_ptr<Event> event_create(bool) { return std::make_unique<Event>(); }
  void event_record(Event& event, Stream& stream, bool) { issuer_.issue({&stream, {}, event.state, {}}); }
  void event_wait(Stream& stream, Event& event) { issuer_.issue({&stream, {}, {}, event.state}); }
  bool event_test(Event& event) { return is("early") || event.state->reached(); }
  double event_elapsed(Event& from, Event& to) {
    return (to.state->ms() - from.state->ms()) * (is("late") ? 1000 : 1);  // microseconds
  }

  void copy(Stream& stream, void* to, const void* from, size_t bytes) {
    if (is("now") && !capturing_) {
      memcpy(to, from, bytes);
    } else if (is("kept") && capturing_) {  // the present contents
      const std::vector<char> seen(static_cast<const char*>(from), static_cast<const char*>(from) + bytes);
      work(stream, [=] { memcpy(to, seen.data(), seen.size()); });
    } else {
      work(stream, [=] { memcpy(to, from, bytes); });
    }
  }
  void zero(Stream& stream, void* ptr, size_t bytes) {
    const size_t done = is("zero") ? bytes / 4 * 4 : bytes;
    work(stream, [=] { memset(ptr, 0, done); });
  }
  void host_call(Stream& stream, void (*function)(void*), void* data) {
    if (is("calls")) return function(data);
    const bool twice = is("twice");
    work(stream, [=] { function(data), twice ? function(data) : void(); });
    if (is("blocks") && !capturing_) stream.wait();
  }

  std::unique_ptr<Kernel> kernel_create(const prun_op& op) {
    if (const std::string why = why_refused(op); !why.empty()) throw Failure(PRUN_ENOTSUP, why);
    if (is("crashes")) raise(SIGSEGV);
    float factor = 0;
    for (size_t i = 0; i < op.n_attrs; ++i)
      if (strcmp(op.attrs[i].name, "factor") == 0) factor = static_cast<float>(op.attrs[i].number);
    int64_t n = 1;
    for (int i = 0; i < op.reads[0].rank; ++i) n *= op.reads[0].dims[i];
    if (is("scale")) factor *= 1.0001F;
    return std::make_unique<Kernel>(
        Kernel{static_cast<const float*>(op.reads[0].ptr), static_cast<float*>(op.writes[0].ptr), n, factor});
  }
  void kernel_run(Kernel& kernel, Stream& stream) {
    static int runs = 0;
    const float bit = is("random") && ++runs % 2 == 0 ? 1 + 0x1p-23F : 1;
    work(stream, [=, k = kernel] { std::transform(k.x, k.x + k.n, k.y, [&](float x) { return k.factor * x * bit; }); });
  }

  void capture_begin(Stream& stream) {
    capturing_ = true;
    issuer_.begin_capture(&stream);
  }
  std::unique_ptr<Graph> capture_end(Stream& stream) {
    capturing_ = false;
    std::unique_ptr<Graph> made = issuer_.end_capture(&stream);
    if (is("edges")) std::erase_if(made->calls, [](const auto& call) { return call.wait != nullptr; });
    return made;
  }
  void graph_launch(Graph& graph, Stream& stream) {
    issuer_.launch(graph, &stream);
    if (is("once")) graph.calls.clear();
  }

 private:
  void work(Stream& stream, const std::function<void()>& body) {
    if (is("captured") && capturing_) body();
    issuer_.issue({&stream, body, {}, {}});
  }

  std::string way_;
  cpu_queue::Issuer issuer_;
  std::vector<void*> memory_;
  bool capturing_ = false;
};

using Calls = prun::sdk::DeviceCalls<Wrong>;

}  // namespace

const prun_device* prun_device_v1(uint32_t abi) {
  prun_device* table = prun::sdk::device_table<Wrong>(
      abi, {.name = "wrong", .version = "1.0.0", .summary = "one op, and what it is told to do wrong"});
  if (table == nullptr) return nullptr;
  table->close = [](prun_dev* dev) {
    if (!Calls::of(dev).device.is("closes")) Calls::close(dev);
  };
  return table;
}
