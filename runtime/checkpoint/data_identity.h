// Which data a checkpoint was trained with: their size and content, and what decides which sample comes when. Paths are
// no part of it, so files may be moved.
//
// Surprising fact: digests of blocks are stored one by one, so that data that grew or shrank are told from others.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace prun::checkpoint {

// The elements of the files that are read one after the other, without their headers.
struct DataContent {
  std::string name;     // of the input, as DataFile::name
  std::string element;  // data/element.h
  int64_t elements = 0;
  std::vector<std::string> blocks;  // SHA-256 of sampled blocks (blocks_of), 16 hex digits each

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(name, element, elements, blocks);
  }
};

struct DataIdentity {
  std::string kind, order;       // as DataSource; kind "": not known
  int64_t context = 0;           // tokens of a sample; 0: samples have no tokens
  int64_t first = 0, count = 0;  // the part that is read, in tokens or samples
  std::vector<DataContent> contents;

  bool known() const { return !kind.empty(); }
  template <class Fields>
  void each_field(Fields&& fields) {
    fields(kind, order, context, first, count, contents);
  }
};

nlohmann::ordered_json identity_json(const DataIdentity& identity);
DataIdentity read_identity(const nlohmann::ordered_json& json);  // throws Json::exception

// The sampled blocks of `elements` elements of `width` bytes: all of them up to 16 MiB, else 64 runs at equal
// distances, the first and the last included.
struct DataBlock {
  int64_t begin = 0, end = 0;  // elements
};
std::vector<DataBlock> blocks_of(int64_t elements, int64_t width);

}  // namespace prun::checkpoint
