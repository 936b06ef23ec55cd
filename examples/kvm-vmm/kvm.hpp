// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// What the other files stand on: an error that knows the program's exit code, KVM's files, and mapped memory.
/// [kvm-api]

// In C++ the definition of Linux 6.1 gives an empty structure a byte, and with it KVM's requests another number.
#include <linux/stddef.h>
#undef __DECLARE_FLEX_ARRAY
#define __DECLARE_FLEX_ARRAY(type, name) __extension__ type name[0]

#include <linux/kvm.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
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

/// For what must not fail. \return `result`, unless it is -1
inline int checked(int result, char const* name) {
    if (result < 0) throw failure(machine_failed, std::string(name) + ": " + std::strerror(errno));
    return result;
}
/// An ioctl of a file that must not fail.
#define PVX_VMM_CALL(file, request, argument) checked(ioctl((file).fd(), request, argument), #request)

/// An open file, closed with the object.
class file {
public:
    explicit file(int descriptor = -1) : fd_(descriptor) {}
    file(file&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    ~file() { close(fd_); }
    file& operator=(file&& other) noexcept { return std::swap(fd_, other.fd_), *this; }
    int fd() const { return fd_; }

private:
    int fd_;
};

/// A file's bytes in memory.
class mapping {
public:
    mapping() = default;
    mapping(file const& of, size_t size)
        : size_(size), bytes_(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, of.fd(), 0)) {
        checked(bytes_ == MAP_FAILED ? -1 : 0, "mmap");
    }
    mapping(mapping&& other) noexcept { *this = std::move(other); }
    ~mapping() { munmap(bytes_, size_); }
    mapping& operator=(mapping&& other) noexcept {
        std::swap(size_, other.size_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    size_t size() const { return size_; }
    char* bytes() const { return static_cast<char*>(bytes_); }

private:
    size_t size_{};
    void* bytes_{};
};

/// KVM's structures that end in an array: the head, and room for entries behind it.
template <class Head, class Entry>
class with_entries {
public:
    explicit with_entries(size_t count) : bytes_(sizeof(Head) + count * sizeof(Entry)) {}
    Head* head() { return static_cast<Head*>(static_cast<void*>(bytes_.data())); }
    Entry* entries() { return static_cast<Entry*>(static_cast<void*>(bytes_.data() + sizeof(Head))); }

private:
    std::vector<unsigned char> bytes_;  // aligned for all types, as operator new gives them
};
