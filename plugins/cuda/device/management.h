// NVML, the driver's management library: facts about a GPU that CUDA does not report. It is loaded if it is present;
// any answer may be missing, because containers, MIG and virtual GPUs restrict queries.
//
// A toolkit may lack its header, so the few functions are declared here; their ABI never changes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace prun::cuda {

class Management {
 public:
  Management();
  ~Management();
  Management(const Management&) = delete;

  int mig_gpus() const;  // number of GPUs of the machine that are divided into instances (MIG)
  // The GPU at a PCI address, as CUDA writes it ("0000:65:00.0"); nullopt = unknown.
  std::optional<uint64_t> used_bytes(const std::string& pci) const;  // by all processes
  std::optional<bool> persistent(const std::string& pci) const;
  std::optional<uint64_t> lost_bits(
      const std::string& pci) const;  // memory errors that ECC could not correct, since the driver was loaded
  std::optional<bool> needs_repair(const std::string& pci) const;     // memory rows that could not be replaced
  std::optional<bool> waits_for_reset(const std::string& pci) const;  // memory rows that the next reset replaces

 private:
  void* device(const std::string& pci) const;
  template <class Function>
  Function find(const char* name) const;

  void* library_ = nullptr;  // handle of NVML; null: it is missing, or does not start
};

}  // namespace prun::cuda
