// NVML, the driver's library for its management: what CUDA does not say of a GPU. It is loaded where it is; any answer
// may be missing, since containers, MIG and virtual GPUs allow some questions only.
//
// No toolkit is sure to have its header, so the few functions are declared here; their places never change.
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

  int mig_gpus() const;  // of the whole machine, that are divided into instances (MIG)
  // All of the GPU at this PCI address, as CUDA writes it ("0000:65:00.0"):
  std::optional<uint64_t> used_bytes(const std::string& pci) const;  // by all processes
  std::optional<bool> persistent(const std::string& pci) const;
  std::optional<uint64_t> lost_bits(
      const std::string& pci) const;  // memory errors that ECC could not correct, since the driver was loaded
  std::optional<bool> needs_repair(const std::string& pci) const;     // memory rows that could not be replaced
  std::optional<bool> waits_for_reset(const std::string& pci) const;  // replaces some at the next reset

 private:
  void* device(const std::string& pci) const;
  template <class Function>
  Function find(const char* name) const;

  void* library_ = nullptr;  // null: not there, or it does not start
};

}  // namespace prun::cuda
