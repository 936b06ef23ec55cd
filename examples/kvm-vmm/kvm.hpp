// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What the other files stand on: an error that knows the program's exit code, and KVM's file descriptors. [kvm-api]

// In C++ the definition of Linux 6.1 gives an empty structure a byte, and with it KVM's requests another number.
#include <linux/stddef.h>
#undef __DECLARE_FLEX_ARRAY
#define __DECLARE_FLEX_ARRAY(type, name) __extension__ type name[0]

#include <linux/kvm.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

static_assert(sizeof(kvm_cpuid2) == 8 && sizeof(kvm_msrs) == 8);

/// Those of tools/run-guest. 0 .. 63 are the guest's own.
enum exit_code : int { usage = 64, missing = 69, machine_failed = 70, no_value = 125, by_signal = 128 };

/// The end of the program, with its exit code and what to say.
struct failure : std::runtime_error {
    failure(int exit_code, std::string const& text) : std::runtime_error(text), code(exit_code) {}
    int code;
};

/// An open file, closed with the object.
class file {
public:
    explicit file(int descriptor) : fd_(descriptor) {}
    file(file&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    file& operator=(file&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~file() {
        if (fd_ >= 0) close(fd_);
    }

    int fd() const { return fd_; }

    /// An ioctl that must not fail.
    template <class T>
    int call(unsigned long request, char const* name, T argument) const {
        int const result = ioctl(fd_, request, argument);
        if (result < 0) throw failure(machine_failed, std::string(name) + ": " + std::strerror(errno));
        return result;
    }

private:
    int fd_;
};

/// The same, with the request's name for the error.
#define PVX_VMM_CALL(file, request, argument) (file).call(request, #request, argument)

/// KVM's structures that end in an array: the head, and room for entries behind it.
template <class Head, class Entry>
class with_entries {
public:
    explicit with_entries(size_t count) : words_((sizeof(Head) + count * sizeof(Entry) + 7) / 8) {}
    Head* head() { return reinterpret_cast<Head*>(words_.data()); }
    Entry* entries() { return reinterpret_cast<Entry*>(head() + 1); }

private:
    std::vector<uint64_t> words_;
};
