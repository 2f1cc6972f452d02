// The base of a transport that only moves messages. It has the requests, the lock, and the rule that the first failure
// ends everything. A derived class writes how a message starts, how all messages progress, and how to wait.
#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "prun/sdk/transport.h"

namespace prun::sdk {

class MessageTransport : public Transport {
 public:
  struct Request {
    size_t left = 0;  // messages that have not ended
  };
  using Transport::Transport;
  virtual ~MessageTransport() = default;

  Request* batch(std::span<const prun_p2p> ops, prun_queue) {
    const std::lock_guard lock(mutex_);
    if (failure_) throw failure_;
    auto request = std::make_unique<Request>();
    request->left = ops.size();
    for (const prun_p2p& op : ops) unstarted_[op.is_recv != 0].push_back({op, request.get()});
    attempt([&] { advance(); });
    return request.release();
  }

  // After a failure the request's buffers are not accessed any more, because `progress` is not called again.
  Failure test(Request* request) {
    {
      const std::lock_guard lock(mutex_);
      attempt([&] { advance(); });
      attempt([&] { check_running(); });
      if (request->left == 0 || failure_) {
        const std::unique_ptr<Request> owner(request);
        return request->left == 0 ? Failure() : failure_;
      }
    }
    wait();
    return {PRUN_AGAIN, ""};
  }

 protected:
  // Exchanges an empty message, with a tag above all lanes, with every rank. It serves the connect of a transport in
  // which only a message proves that a peer is there. Returns PRUN_AGAIN with a rank that has not answered.
  Failure greet() {
    int missing = -1;
    {
      const std::lock_guard lock(mutex_);
      attempt([&] {
        for (int r = static_cast<int>(greetings_.size()); r < ranks; ++r) {
          Request& greeting = greetings_.emplace_back(Request{2});
          for (int is_recv : {0, 1})
            unstarted_[is_recv].push_back(
                {{is_recv, r, PRUN_MAX_LANE + 1, nullptr, 0, PRUN_MEM_HOST, nullptr}, &greeting});
        }
        advance();
      });
      if (failure_) return failure_;
      for (int r = 0; r < ranks && missing < 0; ++r)
        if (greetings_[r].left > 0) missing = r;
    }
    if (missing < 0) return {};
    wait();
    return {PRUN_AGAIN, missing};
  }

  // Both run under the lock; an exception ends the transport. The implementation decrements a request's `left` for each
  // message that ends. `start` returns false if there is no capacity for the message yet; it is then retried before
  // later messages of its direction. Receives are started first.
  virtual bool start(const prun_p2p& op, Request& request) = 0;
  virtual void progress() = 0;
  // Runs without the lock; sleeps at most 10 ms, and only briefly if another thread may end the awaited message.
  virtual void wait() = 0;

  std::mutex mutex_;

 private:
  struct Unstarted {
    prun_p2p op;
    Request* request;
  };
  void advance() {
    for (std::deque<Unstarted>* queue : {&unstarted_[1], &unstarted_[0]})
      while (!queue->empty() && start(queue->front().op, *queue->front().request)) queue->pop_front();
    progress();
  }
  template <class Body>
  void attempt(const Body& body) {
    if (failure_) return;
    try {
      body();
    } catch (const Failure& failure) {
      failure_ = failure;
    }
  }
  Failure failure_;
  std::deque<Unstarted> unstarted_[2];  // sends, receives
  std::deque<Request> greetings_;       // by rank
};

}  // namespace prun::sdk
