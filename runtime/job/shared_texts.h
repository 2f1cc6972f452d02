// A fixed-size map from numbers to short texts, in memory shared with processes that are forked after its construction.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <optional>
#include <string>

namespace prun {

class SharedTexts {
 public:
  SharedTexts();
  ~SharedTexts();
  SharedTexts(const SharedTexts&) = delete;
  SharedTexts& operator=(const SharedTexts&) = delete;

  std::optional<std::string> find(size_t number) const;
  void add(size_t number, const std::string& text);  // drops texts over 1,000 bytes, and texts beyond 64 entries

 private:
  struct Entry {
    std::atomic<bool> whole = false;
    size_t number = 0, size = 0;
    std::array<char, 1000> text;
  };
  struct Entries {
    std::atomic<size_t> taken = 0;
    std::array<Entry, 64> all;
  };
  Entries* entries_;
};

}  // namespace prun
