// The order of samples is a pure function of the seed and the sample's number in the run. Every rank of every mesh
// computes it, and a run that resumes needs only the number of samples that it consumed.
#pragma once
#include <cstdint>

namespace prun {

// Which of two sequences of samples: each has its own order.
enum class SampleUse : uint8_t { training, evaluation };

uint64_t sample_key(SampleUse use);  // of the random numbers of such samples

// The number at `index` in a shuffled 0, 1, ..., count - 1: a permutation that is computed and not stored, by a Feistel
// network over the next power of four, walked until it hits a number below count (Black and Rogaway, "Ciphers with
// arbitrary finite domains", CT-RSA 2002).
int64_t shuffled(int64_t index, int64_t count, uint64_t seed, uint64_t key, uint64_t round);

// A place in [0, places) for the sample, drawn with repetition.
int64_t random_place(int64_t sample, int64_t places, uint64_t seed, SampleUse use);

// The same without repetition: samples 0 .. places - 1 take each place once, in the first epoch's order, the next as
// many again in another one.
int64_t epoch_place(int64_t sample, int64_t places, uint64_t seed, SampleUse use);

// Standard normal numbers, `count` of them from element `first` on: element e is the first of philox::normals of the
// first two words of philox::block(seed, key, e). The same bits on every machine.
void random_normals(uint64_t seed, uint64_t key, uint64_t first, int64_t count, float* to);

}  // namespace prun
