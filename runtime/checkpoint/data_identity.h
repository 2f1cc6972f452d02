// Identifies the data that a checkpoint was trained with: their size, their content, and the settings that determine
// the order of samples. Paths are not part of it, so files may be moved.
//
// Surprising fact: digests of blocks are stored one by one, so that data that grew or shrank are distinguished from
// other data.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/named_field.h"

namespace prun::checkpoint {

// The elements of all files of an input in order, without the headers.
struct DataContent {
  std::string name;     // name of the input: DataFile::name
  std::string element;  // data/element.h
  int64_t elements = 0;
  std::vector<std::string> blocks;  // SHA-256 of sampled blocks (blocks_of), 16 hex digits each
  bool operator==(const DataContent&) const = default;

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(field("name", name), field("element", element), field("elements", elements), field("blocks", blocks));
  }
};

struct DataIdentity {
  std::string kind, order;       // values of DataSource; kind "" = unknown
  int64_t context = 0;           // tokens per sample; 0 = samples without tokens
  int64_t first = 0, count = 0;  // range that training reads, in tokens or samples
  std::vector<DataContent> contents;
  std::string packing;  // of documents: the token that ends them and the rule for long ones; "" = none
  std::string cursor;   // position of a feed after the checkpoint's step, as the feeder writes it

  bool known() const { return !kind.empty(); }
  bool operator==(const DataIdentity&) const = default;

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(field("kind", kind), field("order", order), field("context", context), field("first", first),
           field("count", count), field("contents", contents), optional_field("packing", packing),
           optional_field("cursor", cursor));
  }
};

// Returns the sampled blocks of `elements` elements of `width` bytes: all blocks up to 16 MiB, otherwise 64 blocks at
// equal distances. The first and the last block are always sampled.
struct DataBlock {
  int64_t begin = 0, end = 0;  // elements
};
std::vector<DataBlock> blocks_of(int64_t elements, int64_t width);

}  // namespace prun::checkpoint
