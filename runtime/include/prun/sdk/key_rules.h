// The keys that a query of the ops attend and softmax sees, by the rules causal, window and spans; for the kernels of
// all devices.
#pragma once
#include <cstdint>

#if defined(__CUDACC__)
#define PRUN_KEY_RULES_INLINE __host__ __device__ inline
#else
#define PRUN_KEY_RULES_INLINE inline
#endif

namespace prun::sdk {

struct KeyRange {
  int64_t first = 0, end = 0;  // empty: first >= end
};

struct KeyRules {
  int64_t keys = 0;     // of a sample
  bool causal = false;  // a query sees the keys up to its own index
  int64_t window = 0;   // causal: the last `window` keys; otherwise keys less than `window` away; 0 = all

  // `span`: first key and end of the query's token; null = all keys.
  PRUN_KEY_RULES_INLINE KeyRange of(int64_t query, const int32_t* span) const {
    KeyRange range{0, keys};
    if (span != nullptr) {
      if (span[0] > range.first) range.first = span[0];
      if (span[1] < range.end) range.end = span[1];
    }
    if (causal && query + 1 < range.end) range.end = query + 1;
    if (window > 0) {
      if (query - window + 1 > range.first) range.first = query - window + 1;
      if (query + window < range.end) range.end = query + window;
    }
    if (range.end < 0) range.end = 0;
    if (range.first > range.end) range.first = range.end;  // no key: both are within the keys
    return range;
  }
};

// Returns the head of keys that head `head` of the queries uses, of `heads` heads in all.
PRUN_KEY_RULES_INLINE int64_t kv_head_of(int64_t head, int64_t heads, int64_t kv_heads) {
  return head * kv_heads / heads;
}

}  // namespace prun::sdk
