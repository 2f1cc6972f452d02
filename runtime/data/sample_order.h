// The order of samples is a pure function of the seed and the sample's number in the run. Every rank of every mesh
// computes it, and a run that resumes needs only the number of samples that it consumed.
#pragma once
#include <cstdint>

namespace prun {

// The two sequences of samples; each has its own order.
enum class SampleUse : uint8_t { training, evaluation };

uint64_t sample_key(SampleUse use);  // key of the random numbers of such samples

// Returns element `index` of a permutation of 0, 1, ..., count - 1 that is computed and not stored: a Feistel network
// over the next power of four, applied until its output is below count (Black and Rogaway, "Ciphers with arbitrary
// finite domains", CT-RSA 2002).
int64_t shuffled(int64_t index, int64_t count, uint64_t seed, uint64_t key, uint64_t round);

// Returns a place in [0, places) for the sample, drawn with replacement.
int64_t random_place(int64_t sample, int64_t places, uint64_t seed, SampleUse use);

// Returns a place without replacement: each epoch of `places` samples takes each place once, in an order of its own.
int64_t epoch_place(int64_t sample, int64_t places, uint64_t seed, SampleUse use);

// Writes `count` standard normal numbers from element `first` on: element e is the first of philox::normals of the
// first two words of philox::block(seed, key, e). Bitwise identical on every machine.
void random_normals(uint64_t seed, uint64_t key, uint64_t first, int64_t count, float* to);

}  // namespace prun
