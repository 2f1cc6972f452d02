// The binary form in both directions: Writer appends; Reader checks every bound and throws Error(mismatch).
//
// Integers are zigzag varints. A repeated text is the index of its first occurrence, so that the file names of ten
// thousand ops cost a byte each. Both classes share the interface operator()(fields...), so that one `visit` function
// per struct, or its each_field (base/named_field.h), serves both.
#pragma once
#include <concepts>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/named_field.h"
#include "base/shared_text.h"
#include "ir/ids.h"

namespace prun::archive {

[[noreturn]] inline void bad(const std::string& what) {
  throw Error(Exit::mismatch, "the program is damaged or of another version of prun: " + what);
}

// Matches T and const T: a struct in either direction.
template <class Given, class T>
concept Like = std::same_as<std::remove_cv_t<Given>, T>;

class Writer {
 public:
  static constexpr bool kReading = false;
  template <class... Fields>
  void operator()(const Fields&... fields) {
    (put(fields), ...);
  }
  void number(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_.push_back(static_cast<char>(value | 0x80));
    out_.push_back(static_cast<char>(value));
  }
  std::string take() { return std::move(out_); }

 private:
  template <std::integral T>
  void put(const T& value) {
    int64_t v = static_cast<int64_t>(value);
    number((static_cast<uint64_t>(v) << 1) ^ static_cast<uint64_t>(v >> 63));
  }
  template <class T>
  requires std::is_enum_v<T>
  void put(const T& value) { number(static_cast<uint64_t>(value)); }
  void put(const double& value) {
    char bytes[8];
    std::memcpy(bytes, &value, 8);
    out_.append(bytes, 8);
  }
  void put(const std::string& text) {
    auto [it, fresh] = texts_.emplace(text, texts_.size() + 1);
    if (!fresh) return number(it->second);
    number(0);
    number(text.size());
    out_ += text;
  }
  void put(const SharedText& text) { put(text.str()); }
  template <class T>
  void put(const NamedField<T>& field) {
    put(field.value);
  }
  template <class T>
  void put(const std::optional<T>& value) {
    number(value ? 1 : 0);
    if (value) put(*value);
  }
  template <class T>
  void put(const std::vector<T>& items) {
    number(items.size());
    for (const T& item : items) put(item);
  }
  template <class I, class T>
  void put(const Table<I, T>& items) {
    put(static_cast<const std::vector<T>&>(items));
  }
  template <class Tag>
  void put(Id<Tag> id) {
    put(id.index());
  }
  template <class T>
  requires std::is_class_v<T>
  void put(const T& item) { visit(*this, item); }

  std::string out_;
  std::map<std::string, uint64_t> texts_;
};

class Reader {
 public:
  static constexpr bool kReading = true;
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <class... Fields>
  void operator()(Fields&&... fields) {
    (get(fields), ...);
  }
  uint64_t number() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      uint64_t byte = static_cast<unsigned char>(take(1)[0]);
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    bad("a number does not end");
  }
  void end() const {
    if (!bytes_.empty()) bad(std::to_string(bytes_.size()) + " bytes too many");
  }

 private:
  std::string_view take(uint64_t n) {
    if (n > bytes_.size()) bad("it ends early");
    std::string_view piece = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return piece;
  }
  template <std::integral T>
  void get(T& value) {
    uint64_t coded = number();
    int64_t v = static_cast<int64_t>(coded >> 1) ^ -static_cast<int64_t>(coded & 1);
    value = static_cast<T>(v);
    if (static_cast<int64_t>(value) != v) bad("number " + std::to_string(v) + " does not fit its field");
  }
  template <class T>
  requires std::is_enum_v<T>
  void get(T& value) {
    uint64_t coded = number();
    if (coded > static_cast<uint64_t>(last_of(T{}))) bad("no such enumerator: " + std::to_string(coded));
    value = static_cast<T>(coded);
  }
  void get(double& value) { std::memcpy(&value, take(8).data(), 8); }
  void get(std::string& text) {
    SharedText shared;
    get(shared);
    text = shared.str();
  }
  void get(SharedText& text) {
    uint64_t seen = number();
    if (seen > texts_.size()) bad("text " + std::to_string(seen) + " of " + std::to_string(texts_.size()));
    if (seen == 0) {
      texts_.emplace_back(std::string(take(number())));
      seen = texts_.size();
    }
    text = texts_[seen - 1];
  }
  template <class T>
  void get(NamedField<T>& field) {
    get(field.value);
  }
  template <class T>
  void get(std::optional<T>& value) {
    if (const uint64_t known = number(); known > 1)
      bad("an optional field is there " + std::to_string(known) + " times");
    else if (known == 1)
      get(value.emplace());
  }
  // Every item takes at least one byte, so that a count beyond the remaining bytes is rejected before it allocates.
  template <class T>
  void get(std::vector<T>& items) {
    uint64_t n = number();
    if (n > bytes_.size()) bad(std::to_string(n) + " items in " + std::to_string(bytes_.size()) + " bytes");
    items.resize(n);
    for (T& item : items) get(item);
  }
  template <class I, class T>
  void get(Table<I, T>& items) {
    get(static_cast<std::vector<T>&>(items));
  }
  template <class Tag>
  void get(Id<Tag>& id) {
    int index = -1;
    get(index);
    id = index;
  }
  template <class T>
  requires std::is_class_v<T>
  void get(T& item) { visit(*this, item); }

  std::string_view bytes_;
  std::vector<SharedText> texts_;
};

}  // namespace prun::archive
