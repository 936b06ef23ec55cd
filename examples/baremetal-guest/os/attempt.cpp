// SPDX-License-Identifier: MIT

#include "attempt.hpp"

#include "per_cpu.hpp"

// What boot/traps.S relies on.
static_assert(offsetof(os::per_cpu, attempt) == 16);
static_assert(offsetof(os::attempt_record, previous) == 0 && offsetof(os::attempt_record, stack) == 8);

extern "C" bool os_attempt_run(void (*function)(void*), void* argument, os::attempt_record* record);

namespace os {

fault_info attempt_call(void (*function)(void*), void* argument) {
    attempt_record record{};
    record.flags = arch::read_rflags();
    os_attempt_run(function, argument, &record);
    return record.fault;
}

bool try_rdmsr(uint32_t index, uint64_t& value) {
    return !attempt([&] { value = arch::read_msr(index); });
}

bool try_wrmsr(uint32_t index, uint64_t value) {
    return !attempt([&] { arch::write_msr(index, value); });
}

}  // namespace os
