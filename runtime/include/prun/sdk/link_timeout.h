// How long TCP waits for an answer.
#pragma once

namespace prun::sdk {

// TCP_USER_TIMEOUT in milliseconds, for a job that is to end within `seconds` of a path's loss: one second is for those
// who weigh what the ranks then report. TCP sends again 0.2, 0.6, 1.4, 3.0, 6.2, 12.6 s after a loss and finds only
// then that a path is whole again, so an outage of up to half of `seconds` is survived; where TCP sends again every
// second (below), of all but two of them.
constexpr int user_timeout_ms(unsigned seconds) { return seconds > 1 ? static_cast<int>(seconds - 1) * 1000 : 500; }

// TCP_RTO_MAX_MS of Linux 6.15, which older headers lack and older kernels refuse: the longest pause before TCP sends
// again, and the least that it takes.
inline constexpr int kTcpRtoMaxMs = 44, kLeastRtoMaxMs = 1000;

}  // namespace prun::sdk
