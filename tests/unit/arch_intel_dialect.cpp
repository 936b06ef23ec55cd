// SPDX-License-Identifier: MIT
// What arch_test.cpp calls; this file alone is compiled with -masm=intel.
#include <pvx/arch/x86_64.hpp>

uint32_t clamp_index_in_intel_dialect(uint32_t i, uint32_t n);
uint64_t read_rflags_in_intel_dialect();

uint32_t clamp_index_in_intel_dialect(uint32_t i, uint32_t n) { return pvx::arch::clamp_index(i, n); }
uint64_t read_rflags_in_intel_dialect() { return pvx::arch::read_rflags(); }
