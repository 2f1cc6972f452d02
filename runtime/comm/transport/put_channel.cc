// Each lane has two signals: "slot free" from the receiver and "slot filled" from the sender.
#include <fmt/format.h>

#include <atomic>

#include "base/text.h"
#include "comm/transport/long_wait.h"
#include "comm/transport/transport_session.h"

namespace prun {
namespace {

class TransportPutChannel : public PutChannel {
 public:
  TransportPutChannel(TransportSession& session, int peer, int lane)
      : session_(session),
        peer_(peer),
        plugin_peer_(session.plugin_rank(peer)),
        free_(1 + 2 * static_cast<uint64_t>(lane)),
        filled_(free_ + 1) {
    PRUN_CHECK(lane >= 0 && filled_ <= PRUN_MAX_SIGNAL, fmt::format("one-sided transfers on lane {}", lane));
  }

  void offer() override { run("signal", &prun_transport::signal, 0, "offering a place to", free_); }

  void put(const void* src, int64_t bytes, int64_t offset) override {
    run("wait_signal", &prun_transport::wait_signal, bytes, "waiting for a place to put into from", free_, ++puts_);
    run("put", &prun_transport::put, bytes, "putting {} to", src, session_.handle_of(src), offset, bytes, filled_);
    sent_.fetch_add(bytes, std::memory_order_relaxed);
  }

  void arrive(int64_t bytes) override {
    run("wait_signal", &prun_transport::wait_signal, bytes, "waiting for a put of {} from", filled_, ++arrivals_);
  }

  int64_t bytes_sent() const override { return sent_.load(std::memory_order_relaxed); }

 private:
  // Runs one function to its end. `doing` is followed by the peer; {} in it is replaced by the bytes.
  template <class Function, class... Args>
  void run(const char* name, Function function, int64_t bytes, const char* doing, Args... args) {
    prun_req* req = nullptr;
    prun_result result;
    prun_status status = session_.call(name, function, result, plugin_peer_, args..., &req);
    struct Peer final : Awaited {
      explicit Peer(int one) : rank(one) {}
      std::vector<int> ranks() const override { return {rank}; }
      int rank;
    } const peer(peer_);
    if (status == PRUN_OK) status = session_.finish(req, bytes, result);
    if (status == PRUN_OK) return;
    const std::string sentence = fmt::format(fmt::runtime(doing), human_bytes(bytes)) + fmt::format(" rank {}", peer_);
    if (status == PRUN_AGAIN)
      throw Error(Exit::hang, fmt::format("{}: no progress for {}", sentence, human_seconds(session_.deadline_s())));
    session_.fail(status, result, sentence);
  }

  TransportSession& session_;
  int peer_, plugin_peer_;
  uint64_t free_, filled_;            // signal numbers
  uint64_t puts_ = 0, arrivals_ = 0;  // each counted by one stream's thread
  std::atomic<int64_t> sent_{0};
};

}  // namespace

std::unique_ptr<PutChannel> make_put_channel(TransportSession& session, int peer, int lane) {
  const prun_transport& table = session.table();
  if (table.put == nullptr || table.signal == nullptr || table.wait_signal == nullptr) return nullptr;
  return std::make_unique<TransportPutChannel>(session, peer, lane);
}

}  // namespace prun
