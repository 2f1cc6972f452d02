// Graphs run as freely as their edges allow: ready nodes run concurrently, in threads of their own, so that a missing
// edge shows sooner or later, and nodes that wait for another rank block only their successors.
#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "capture.h"
#include "machine.h"
#include "stream.h"

namespace substitute {
namespace {

// Threads for branches. The pool retains as many as were ever busy at once.
class Pool {
 public:
  void run(Work work) {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    if (queue_.size() > idle_) std::thread([this] { serve(); }).detach();
    changed_.notify_one();
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      changed_.wait(lock, [&] { return !queue_.empty(); });
      --idle_;
      Work work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  size_t idle_ = 0;
};
Pool& pool() {
  static auto* instance = new Pool;
  return *instance;
}

}  // namespace

// A graph that can be launched, with edges from earlier to later nodes. Launches are sequential, as in CUDA.
class Executable {
 public:
  explicit Executable(const Graph& graph) : nodes_(graph.nodes), next_(graph.nodes.size()) {
    for (size_t node = 0; node < nodes_.size(); ++node)
      for (const size_t before : nodes_[node].after) next_[before].push_back(node);
  }

  // Begins the records of its events; returns a ticket for each node.
  std::vector<uint64_t> begin_records() const {
    std::vector<uint64_t> tickets(nodes_.size());
    for (size_t node = 0; node < nodes_.size(); ++node)
      if (nodes_[node].event != nullptr) tickets[node] = begin_record(*nodes_[node].event);
    return tickets;
  }

  void run(const std::vector<uint64_t>& tickets) {
    std::lock_guard one(launch_);
    tickets_ = &tickets;
    std::vector<size_t> ready;
    {
      std::lock_guard lock(mutex_);
      left_ = nodes_.size();
      open_.clear();
      for (size_t node = 0; node < nodes_.size(); ++node) {
        open_.push_back(nodes_[node].after.size());
        if (open_.back() == 0) ready.push_back(node);
      }
    }
    follow(std::move(ready));
    std::unique_lock lock(mutex_);
    over_.wait(lock, [&] { return left_ == 0; });
  }

 private:
  // Runs one of the nodes and its successors in this thread, the other nodes in the pool.
  void follow(std::vector<size_t> ready) {
    while (!ready.empty()) {
      std::swap(ready.back(), ready[random_number() % ready.size()]);
      const size_t mine = ready.back();
      ready.pop_back();
      for (const size_t other : ready) pool().run([this, other] { follow({other}); });
      if (nodes_[mine].event != nullptr)
        end_record(*nodes_[mine].event, (*tickets_)[mine]);
      else
        nodes_[mine].work();
      ready.clear();
      std::lock_guard lock(mutex_);
      for (const size_t next : next_[mine])
        if (--open_[next] == 0) ready.push_back(next);
      if (--left_ == 0) over_.notify_all();
    }
  }

  const std::vector<Node> nodes_;
  std::vector<std::vector<size_t>> next_;
  std::mutex launch_, mutex_;
  std::condition_variable over_;
  std::vector<size_t> open_;  // predecessors that each node still waits for
  size_t left_ = 0;
  const std::vector<uint64_t>* tickets_ = nullptr;
};

}  // namespace substitute

using substitute::Executable;
using substitute::result;
using Handle = std::shared_ptr<Executable>;

static Handle& of(cudaGraphExec_t exec) { return *reinterpret_cast<Handle*>(exec); }

ENTRY cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  auto made = std::make_shared<Executable>(*reinterpret_cast<substitute::Graph*>(graph));
  *exec = reinterpret_cast<cudaGraphExec_t>(new Handle(std::move(made)));
  return cudaSuccess;
}
ENTRY cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(exec, graph, flags);
}
ENTRY cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  const Handle graph = ::of(exec);
  return result(substitute::enqueue(stream, [graph] {}));
}
ENTRY cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const Handle graph = ::of(exec);
  return result(substitute::enqueue(stream, [graph, tickets = graph->begin_records()] { graph->run(tickets); }));
}
ENTRY cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return delete reinterpret_cast<substitute::Graph*>(graph), cudaSuccess;
}
ENTRY cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return delete &::of(exec), cudaSuccess; }
