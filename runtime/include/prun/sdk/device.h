// A device as a class: `device_table<T>` makes the table of prun/device.h from it.
//
//     class Gpu {
//      public:
//     struct Stream; struct Event; struct Kernel; struct Graph;  // prun_stream, ... for the core
//     explicit Gpu(const prun_device_params& params);        // open
//     static void probe(prun_device_probe& probe);           // fills the whole struct, whatever the size of the core's
//     static void describe(int index, prun_device_info& info);
//     static std::string why_refused(const prun_op& op);     // supports: "", or the reason for PRUN_ENOTSUP
//     static size_t workspace(const prun_op& op);
//     void* alloc(size_t bytes, int place);
//     void free(void* ptr, int place);
//     void memory_info(uint64_t& free_bytes, uint64_t& total_bytes);
//     std::unique_ptr<Stream> stream_create(int priority);
//     prun_queue stream_queue(Stream& stream);
//     bool stream_test(Stream& stream);                      // true: idle
//       void stream_wait(Stream& stream);
//       std::unique_ptr<Event> event_create(bool timed);
//       void event_record(Event& event, Stream& stream, bool external);
//       void event_wait(Stream& stream, Event& event);
//     bool event_test(Event& event);                         // true: reached
//       double event_elapsed(Event& from, Event& to);          // milliseconds
//       void copy(Stream& stream, void* to, const void* from, size_t bytes);
//       void zero(Stream& stream, void* ptr, size_t bytes);
//       void host_call(Stream& stream, void (*function)(void*), void* data);
//       std::unique_ptr<Kernel> kernel_create(const prun_op& op);  // throws PRUN_ENOTSUP for an op without a kernel
//       void kernel_run(Kernel& kernel, Stream& stream);
//     };
//     const prun_device* prun_device_v1(uint32_t abi) {
//       return prun::sdk::device_table<Gpu>(abi, {.name = "gpu", .version = "1.0.0", .summary = "..."});
//     }
//
// Optional members, with the names of the table: capture_begin(Stream&), capture_end(Stream&), which returns a
// std::unique_ptr<Graph>, and graph_launch(Graph&, Stream&), all three or none; pin(ptr, bytes) and unpin(ptr); the
// static ext(std::string_view). Two more are hooks: use() runs before every other member of an open device, the static
// freed() after every function that frees.
//
// Members throw Failure (failure.h). The table owns streams, events, kernels and graphs until they are freed, at the
// latest by close, which first waits for all streams and destroys T last.
#pragma once
#include <prun/device.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "prun/sdk/failure.h"

namespace prun::sdk {

struct AboutDevice {
  const char *name, *version, *summary;
  prun_mem_kind mem_kind = PRUN_MEM_HOST;
};

// Owns objects made for the core, and finds them by their address.
template <class T, class Free = std::default_delete<T>>
class Owned {
 public:
  T* keep(std::unique_ptr<T, Free> made) {
    T* address = made.get();
    all_.emplace(address, std::move(made));
    return address;
  }
  void free(T* address) { all_.erase(address); }
  template <class F>
  void each(const F& f) {
    for (const auto& [address, owner] : all_) f(*address);
  }

 private:
  std::unordered_map<T*, std::unique_ptr<T, Free>> all_;
};

// Copies `ours` into the caller's struct as far as its size allows, and sets its size.
template <class Sized>
void write_sized(Sized& ours, Sized* theirs) {
  ours.size = std::min(theirs->size, sizeof ours);
  std::memcpy(theirs, &ours, ours.size);
}

// The functions of the table.
template <class T>
struct DeviceCalls {
  using Stream = typename T::Stream;
  using Event = typename T::Event;
  using Kernel = typename T::Kernel;
  using Graph = typename T::Graph;

  // Members are destroyed in reverse order: the device last.
  struct Open {
    explicit Open(const prun_device_params& params) : device(params) {}
    T device;
    Owned<Kernel> kernels;
    Owned<Graph> graphs;
    Owned<Event> events;
    Owned<Stream> streams;
  };
  inline static prun_device table{};

  static Open& of(prun_dev* dev) { return *reinterpret_cast<Open*>(dev); }
  static Stream& of(prun_stream* stream) { return *reinterpret_cast<Stream*>(stream); }
  static Event& of(prun_event* event) { return *reinterpret_cast<Event*>(event); }
  static Kernel& of(prun_kernel* kernel) { return *reinterpret_cast<Kernel*>(kernel); }
  static Graph& of(prun_graph* graph) { return *reinterpret_cast<Graph*>(graph); }

  // Returns the status of body(device), which may return one.
  template <class Body>
  static prun_status call(prun_dev* dev, prun_result* result, const Body& body) {
    return guarded(result, [&] {
      T& device = of(dev).device;
      if constexpr (requires { device.use(); }) device.use();
      return body(device);
    });
  }
  // Runs body(device) for a function without a status, because an earlier call has reported any error of the device.
  template <class Body>
  static void freeing(prun_dev* dev, const Body& body) {
    call(dev, nullptr, [](T&) {});  // use()
    body();
    if constexpr (requires { T::freed(); }) T::freed();
  }
  // Sets *made to the object that make(device) returns.
  template <class Handle, class M, class Make>
  static prun_status create(prun_dev* dev, Owned<M> Open::*all, Handle** made, prun_result* result, const Make& make) {
    return call(dev, result, [&](T& device) { *made = reinterpret_cast<Handle*>((of(dev).*all).keep(make(device))); });
  }
  static prun_status probe(prun_device_probe* probe) {
    return guarded(nullptr, [&] {
      prun_device_probe ours{};
      T::probe(ours);
      write_sized(ours, probe);
    });
  }
  static prun_status describe(int index, prun_device_info* info, prun_result* result) {
    return guarded(result, [&] {
      prun_device_info ours{};
      T::describe(index, ours);
      write_sized(ours, info);
    });
  }
  static prun_status supports(const prun_op* op, prun_result* result) {
    return guarded(result, [&] {
      const std::string why = T::why_refused(*op);
      return why.empty() ? Failure() : Failure(PRUN_ENOTSUP, why);
    });
  }
  static prun_status workspace(const prun_op* op, size_t* bytes, prun_result* result) {
    return guarded(result, [&] { *bytes = T::workspace(*op); });
  }

  static prun_status open(const prun_device_params* params, prun_dev** dev, prun_result* result) {
    return guarded(result, [&] { *dev = reinterpret_cast<prun_dev*>(new Open(*params)); });
  }
  static void close(prun_dev* dev) {
    freeing(dev, [&] {
      of(dev).streams.each([&](Stream& stream) { guarded(nullptr, [&] { of(dev).device.stream_wait(stream); }); });
      delete &of(dev);
    });
  }

  static prun_status alloc(prun_dev* dev, size_t bytes, int place, void** ptr, prun_result* result) {
    return call(dev, result, [&](T& device) { *ptr = device.alloc(bytes, place); });
  }
  static void free(prun_dev* dev, void* ptr, int place) {
    freeing(dev, [&] { of(dev).device.free(ptr, place); });
  }
  static prun_status memory_info(prun_dev* dev, uint64_t* free_bytes, uint64_t* total_bytes) {
    return call(dev, nullptr, [&](T& device) { device.memory_info(*free_bytes, *total_bytes); });
  }

  static prun_status stream_create(prun_dev* dev, int priority, prun_stream** stream, prun_result* result) {
    return create(dev, &Open::streams, stream, result, [&](T& device) { return device.stream_create(priority); });
  }
  static void stream_free(prun_dev* dev, prun_stream* stream) {
    freeing(dev, [&] { of(dev).streams.free(&of(stream)); });
  }
  static prun_queue stream_queue(prun_dev* dev, prun_stream* stream) { return of(dev).device.stream_queue(of(stream)); }
  static prun_status stream_test(prun_dev* dev, prun_stream* stream, prun_result* result) {
    return call(dev, result, [&](T& device) { return device.stream_test(of(stream)) ? PRUN_OK : PRUN_AGAIN; });
  }
  static prun_status stream_wait(prun_dev* dev, prun_stream* stream, prun_result* result) {
    return call(dev, result, [&](T& device) { device.stream_wait(of(stream)); });
  }

  static prun_status event_create(prun_dev* dev, int timed, prun_event** event, prun_result* result) {
    return create(dev, &Open::events, event, result, [&](T& device) { return device.event_create(timed != 0); });
  }
  static void event_free(prun_dev* dev, prun_event* event) {
    freeing(dev, [&] { of(dev).events.free(&of(event)); });
  }
  static prun_status event_record(prun_dev* dev, prun_event* event, prun_stream* stream, int external,
                                  prun_result* result) {
    return call(dev, result, [&](T& device) { device.event_record(of(event), of(stream), external != 0); });
  }
  static prun_status event_wait(prun_dev* dev, prun_stream* stream, prun_event* event, prun_result* result) {
    return call(dev, result, [&](T& device) { device.event_wait(of(stream), of(event)); });
  }
  static prun_status event_test(prun_dev* dev, prun_event* event, prun_result* result) {
    return call(dev, result, [&](T& device) { return device.event_test(of(event)) ? PRUN_OK : PRUN_AGAIN; });
  }
  static prun_status event_elapsed(prun_dev* dev, prun_event* from, prun_event* to, double* ms, prun_result* result) {
    return call(dev, result, [&](T& device) { *ms = device.event_elapsed(of(from), of(to)); });
  }

  static prun_status copy(prun_dev* dev, prun_stream* stream, void* to, const void* from, size_t bytes,
                          prun_result* result) {
    return call(dev, result, [&](T& device) { device.copy(of(stream), to, from, bytes); });
  }
  static prun_status zero(prun_dev* dev, prun_stream* stream, void* ptr, size_t bytes, prun_result* result) {
    return call(dev, result, [&](T& device) { device.zero(of(stream), ptr, bytes); });
  }
  static prun_status host_call(prun_dev* dev, prun_stream* stream, void (*function)(void*), void* data,
                               prun_result* result) {
    return call(dev, result, [&](T& device) { device.host_call(of(stream), function, data); });
  }

  static prun_status kernel_create(prun_dev* dev, const prun_op* op, prun_kernel** kernel, prun_result* result) {
    return create(dev, &Open::kernels, kernel, result, [&](T& device) { return device.kernel_create(*op); });
  }
  static void kernel_free(prun_dev* dev, prun_kernel* kernel) {
    freeing(dev, [&] { of(dev).kernels.free(&of(kernel)); });
  }
  static prun_status kernel_run(prun_dev* dev, prun_kernel* kernel, prun_stream* stream, prun_result* result) {
    return call(dev, result, [&](T& device) { device.kernel_run(of(kernel), of(stream)); });
  }

  static prun_status capture_begin(prun_dev* dev, prun_stream* stream, prun_result* result) {
    return call(dev, result, [&](T& device) { device.capture_begin(of(stream)); });
  }
  static prun_status capture_end(prun_dev* dev, prun_stream* stream, prun_graph** graph, prun_result* result) {
    return create(dev, &Open::graphs, graph, result, [&](T& device) { return device.capture_end(of(stream)); });
  }
  static prun_status graph_launch(prun_dev* dev, prun_graph* graph, prun_stream* stream, prun_result* result) {
    return call(dev, result, [&](T& device) { device.graph_launch(of(graph), of(stream)); });
  }
  static void graph_free(prun_dev* dev, prun_graph* graph) {
    freeing(dev, [&] { of(dev).graphs.free(&of(graph)); });
  }

  static prun_status pin(prun_dev* dev, void* ptr, size_t bytes, prun_result* result) {
    return call(dev, result, [&](T& device) { device.pin(ptr, bytes); });
  }
  static void unpin(prun_dev* dev, void* ptr) {
    freeing(dev, [&] { of(dev).device.unpin(ptr); });
  }
  static const void* ext(const char* id) { return T::ext(std::string_view(id)); }
};

// Returns the table for prun_device_v1; null if the core is older than this header. Each class has one table.
template <class T>
prun_device* device_table(uint32_t abi, const AboutDevice& about) {
  if (abi < PRUN_DEVICE_ABI) return nullptr;
  using Calls = DeviceCalls<T>;
  prun_device& table = Calls::table;
  table = {};
  table.size = sizeof table;
  table.abi = PRUN_DEVICE_ABI;
  table.name = about.name;
  table.version = about.version;
  table.summary = about.summary;
  table.mem_kind = about.mem_kind;
#define PRUN_DEVICE_CALL(name) table.name = Calls::name;
  PRUN_DEVICE_MANDATORY(PRUN_DEVICE_CALL)
#undef PRUN_DEVICE_CALL
  if constexpr (requires { &T::capture_begin; }) {
    table.capture_begin = Calls::capture_begin;
    table.capture_end = Calls::capture_end;
    table.graph_launch = Calls::graph_launch;
    table.graph_free = Calls::graph_free;
  }
  if constexpr (requires { &T::pin; }) {
    table.pin = Calls::pin;
    table.unpin = Calls::unpin;
  }
  if constexpr (requires { &T::ext; }) table.ext = Calls::ext;
  return &table;
}

}  // namespace prun::sdk
