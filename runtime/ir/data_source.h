// Where samples come from, as plan and program say it: which files, which part of them, in which order.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace prun {

// A shard of tokens, or an array with an entry for each sample.
struct DataFile {
  std::string path;        // absolute
  int64_t bytes = 0;       // of all the file: one of another size is another file
  int64_t skip_bytes = 0;  // header
  std::string element;     // data/element.h
  std::string name;        // of the input that an array gives: "x"; "": tokens
  bool operator==(const DataFile&) const = default;
};

struct DataSource {
  std::string kind;  // "", bytes, tokens, arrays, random, index
  std::vector<DataFile> files;
  int64_t vocab = 0;             // ids at or above it are an error
  int64_t global_batch = 0;      // samples per step over all ranks
  std::string order = "random";  // random: with repetition; epochs: without
  // The part of the files that is read, in tokens or samples. count 0: there are as many as one wants.
  int64_t first = 0, count = 0;
  bool part = false;  // that is not all of them
  double scale = 1;   // the numbers of x are multiplied by it
  // The token that ends a document: what follows it is another text, which is not to be predicted from it. -1: none.
  int64_t document_end = -1;
  int64_t whole = 0;  // samples of a set that an evaluation reads once each (ir/whole_set.h); 0 = a fixed batch count

  std::string words() const;   // "tokens", "tokens in epochs"
  std::string path() const;    // of the first file; "": there is none
  int64_t file_bytes() const;  // of all files
};

}  // namespace prun
