#include <fmt/format.h>

#include "launch/reception.h"
#include "launch/supervisor.h"

namespace prun {
namespace {

constexpr auto kLookForNodes = std::chrono::milliseconds(50);

}  // namespace

LateNodes::LateNodes(std::shared_ptr<Reception> reception, const LaunchOptions& options, LaunchObserver& observer)
    : reception_(std::move(reception)), options_(options), observer_(observer) {}

bool LateNodes::look(Clock::time_point now) {
  if (!reception_ || now < next_look_) return false;
  next_look_ = now + kLookForNodes;
  reception_->serve(now);
  while (const std::optional<size_t> node = reception_->take_latecomer()) greet(*node);
  return wait_ && options_.takes_nodes_after_s >= 0 && now >= after(began_, options_.takes_nodes_after_s);
}

void LateNodes::greet(size_t node) {
  wait_ = true;
  const char* when = options_.takes_nodes_after_s < 0 ? "waits for the next restart, since this job makes no commits"
                                                      : "has come back: it takes part after a commit";
  observer_.message(fmt::format("prun: node {} ({}) {}\n", node, reception_->host_of(node), when));
}

void LateNodes::end(const Verdict& verdict) {
  if (!reception_) return;
  JobOffer offer;
  offer.join_again = verdict.begins_again;
  offer.over = !verdict.begins_again;
  offer.error = "the job has ended";
  if (verdict.failure) {
    offer.error_code = verdict.failure->code;
    offer.error = "node 0 has ended the job: " + verdict.failure->what;
  }
  reception_->close(offer);
  reception_.reset();
}

std::vector<int> LateNodes::descriptors() const { return reception_ ? reception_->descriptors() : std::vector<int>{}; }

}  // namespace prun
