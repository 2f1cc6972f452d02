// Source of samples, for plan and program: the files, the part of them that is read, and its order.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace prun {

// A shard of tokens, or an array with an entry for each sample.
struct DataFile {
  std::string path;        // absolute
  int64_t bytes = 0;       // file size; a file of another size counts as another file
  int64_t skip_bytes = 0;  // header
  std::string element;     // data/element.h
  std::string name;        // input that an array provides: "x"; "" = tokens
  bool operator==(const DataFile&) const = default;
};

// An input of a feed: one sample of it.
struct FeedInput {
  std::string name;
  std::string element;        // data/element.h
  std::vector<int64_t> dims;  // without the batch; empty = one element
  bool operator==(const FeedInput&) const = default;
};

struct DataSource {
  std::string kind;  // "", bytes, tokens, arrays, random, index, feed
  std::vector<DataFile> files;
  int64_t vocab = 0;             // ids at or above it are an error
  int64_t global_batch = 0;      // samples per step over all ranks
  std::string order = "random";  // random: with repetition; epochs: without; given: as stored, again and again
  // Part of the files that is read, in tokens or samples. count 0 = unlimited.
  int64_t first = 0, count = 0;
  bool part = false;  // the part is not the whole
  double scale = 1;   // factor of the values of x
  // Token that ends a document; no token of the next document is predicted from it. -1 = none.
  int64_t document_end = -1;
  // Tokens of a stream of whole documents, which is a sample; 0 = samples are windows of the text.
  int64_t capacity = 0;
  std::string long_documents;  // rule for documents longer than the capacity: error, split, truncate
  int64_t whole = 0;           // samples of a set that an evaluation reads once each; 0 = a fixed batch count
  // Rule for the samples of an epoch that fill no batch: "" = the next epoch completes the batch; drop: they are
  // omitted; pad: copies, whose targets are ignored, complete the batch.
  std::string last;
  std::string feed;               // name of the feed, or path of its ring; "" = none
  std::vector<FeedInput> inputs;  // inputs of the feed
  int64_t slots = 0;              // batches in the ring of the feed

  std::string words() const;   // "tokens", "tokens in epochs"
  std::string path() const;    // path of the first file; "" = none
  int64_t file_bytes() const;  // total size of the files
};

// Batches of an evaluation that counts each sample of its set once, although all batches have one size.
//
//   a set of 10 samples, batches of 4:   0 1 2 3 | 4 5 6 7 | 8 9 8 9
//   a set of 11 samples, batches of 4:   0 1 2 3 | 4 5 6 7 | 8 9 10 8 | 8 8 8 8
//
// Equally many copies of the last samples fill a batch. If that batch has slots left, they contain the first of these
// samples, and one more batch contains that sample alone, so that its loss can be subtracted. The mean of the set is
// therefore a weighted sum of batch means, and no kernel needs a mask.
struct WholeSet {
  int64_t samples = 0, batch = 1;  // both at least 1

  int64_t batches() const;
  int64_t sample(int64_t batch_index, int64_t slot) const;
  double weight(int64_t batch_index) const;  // weight of a batch's mean, relative to a full batch
  double mean(const std::vector<double>& batch_means) const;

 private:
  int64_t full() const { return samples / batch; }  // batches without copies
  int64_t left() const { return samples % batch; }
  int64_t copies() const { return batch / left(); }  // copies of each remaining sample
};

// Returns the loss of an evaluation on `source` from the losses of its batches, in order.
double evaluation_loss(const DataSource& source, const std::vector<double>& batch_means);

}  // namespace prun
