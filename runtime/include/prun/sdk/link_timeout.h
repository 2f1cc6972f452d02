// The time for which TCP waits for an acknowledgement before a path counts as lost.
#pragma once

namespace prun::sdk {

// Returns TCP_USER_TIMEOUT in milliseconds for a job that should end within `seconds` of losing a path; one second of
// them is reserved for evaluating the ranks' reports. TCP retransmits 0.2, 0.6, 1.4, 3.0, 6.2, 12.6 s after a loss and
// detects only then that a path works again, so an outage of up to half of `seconds` is survived. If TCP retransmits
// every second (below), outages of up to `seconds` less two are survived.
constexpr int user_timeout_ms(unsigned seconds) { return seconds > 1 ? static_cast<int>(seconds - 1) * 1000 : 500; }

// The socket option TCP_RTO_MAX_MS (Linux 6.15; missing from older headers, refused by older kernels) bounds the
// interval between retransmissions; kLeastRtoMaxMs is its minimum.
inline constexpr int kTcpRtoMaxMs = 44, kLeastRtoMaxMs = 1000;

}  // namespace prun::sdk
