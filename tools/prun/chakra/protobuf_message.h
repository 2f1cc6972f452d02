// A protocol buffer message as bytes, with the few field types of execution traces (protobuf.dev, "Encoding").
//
// Zero fields are written too, because they select the member of a oneof.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace prun::chakra {

class Message {
 public:
  void number(int field, uint64_t value) {
    varint(static_cast<uint64_t>(field) << 3);
    varint(value);
  }
  void text(int field, std::string_view value) {
    varint(static_cast<uint64_t>(field) << 3 | 2);
    varint(value.size());
    bytes_ += value;
  }
  void message(int field, const Message& value) { text(field, value.bytes_); }
  void varint(uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_.push_back(static_cast<char>((value & 127) | 128));
    bytes_.push_back(static_cast<char>(value));
  }
  // Appends a length-prefixed message, as in files.
  void delimited(const Message& value) {
    varint(value.bytes_.size());
    bytes_ += value.bytes_;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace prun::chakra
