// Two signals a lane: "a place is free" from the receiver, "it is filled" from the sender.
#include "comm/transport/put_channel.h"

#include <fmt/format.h>

#include <atomic>

#include "base/text.h"

namespace prun {
namespace {

class TransportPutChannel : public PutChannel {
 public:
  TransportPutChannel(Link& link, int peer, int lane)
      : link_(link), peer_(peer), free_(1 + 2 * static_cast<uint64_t>(lane)), filled_(free_ + 1) {
    PRUN_CHECK(lane >= 0 && filled_ <= PRUN_MAX_SIGNAL, fmt::format("one-sided transfers on lane {}", lane));
  }

  void offer() override {
    prun_req* req = nullptr;
    prun_result result = empty_result();
    prun_status status = link_.table().signal(link_.ctx(), link_.own_rank(peer_), free_, &req, &result);
    finish(status, req, 0, result, "offering a place to");
  }

  void put(const void* src, int64_t bytes, int64_t offset) override {
    prun_req* req = nullptr;
    prun_result result = empty_result();
    prun_status status = link_.table().wait_signal(link_.ctx(), link_.own_rank(peer_), free_, ++puts_, &req, &result);
    finish(status, req, bytes, result, "waiting for a place to put into from");
    req = nullptr;
    result = empty_result();
    status = link_.table().put(link_.ctx(), link_.own_rank(peer_), src, link_.handle_of(src),
                               static_cast<size_t>(offset), static_cast<size_t>(bytes), filled_, &req, &result);
    finish(status, req, bytes, result, fmt::format("putting {} to", human_bytes(bytes)));
    sent_.fetch_add(bytes, std::memory_order_relaxed);
  }

  void arrive(int64_t bytes) override {
    prun_req* req = nullptr;
    prun_result result = empty_result();
    prun_status status =
        link_.table().wait_signal(link_.ctx(), link_.own_rank(peer_), filled_, ++arrivals_, &req, &result);
    finish(status, req, bytes, result, fmt::format("waiting for a put of {} from", human_bytes(bytes)));
  }

  int64_t bytes_sent() const override { return sent_.load(std::memory_order_relaxed); }

 private:
  // `doing` is followed by the peer.
  void finish(prun_status status, prun_req* req, int64_t bytes, prun_result& result, std::string_view doing) {
    link_.told(status, result);
    if (status == PRUN_OK) {
      status = link_.wait(req, bytes, result);
      if (status == PRUN_AGAIN) link_.drain({req});
    }
    if (status == PRUN_OK) return;
    std::string sentence = fmt::format("{} rank {}", doing, peer_);
    if (status == PRUN_AGAIN)
      throw Error(Exit::hang, fmt::format("{}: no progress for {}", sentence, human_seconds(link_.deadline_s())));
    link_.fail(status, result, sentence);
  }

  Link& link_;
  int peer_;
  uint64_t free_, filled_;            // numbers of signals
  uint64_t puts_ = 0, arrivals_ = 0;  // each the business of one stream
  std::atomic<int64_t> sent_{0};
};

}  // namespace

std::unique_ptr<PutChannel> make_put_channel(Link& link, int peer, int lane) {
  const prun_transport& table = link.table();
  if (table.put == nullptr || table.signal == nullptr || table.wait_signal == nullptr) return nullptr;
  return std::make_unique<TransportPutChannel>(link, peer, lane);
}

}  // namespace prun
