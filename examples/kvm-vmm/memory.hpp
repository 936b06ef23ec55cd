// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The guest's memory: from address 0 on, in one piece.

#include <sys/mman.h>

#include "kvm.hpp"

class guest_memory {
public:
    explicit guest_memory(uint64_t size) : file_(memfd_create("guest", MFD_CLOEXEC)), size_(size) {
        if (file_.fd() < 0 || ftruncate(file_.fd(), static_cast<off_t>(size)) < 0) fail();
        void* const place = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_.fd(), 0);
        if (place == MAP_FAILED) fail();
        bytes_ = static_cast<char*>(place);
    }
    guest_memory(guest_memory&& other) noexcept
        : file_(std::move(other.file_)), size_(other.size_), bytes_(std::exchange(other.bytes_, nullptr)) {}
    guest_memory& operator=(guest_memory&&) = delete;
    ~guest_memory() {
        if (bytes_ != nullptr) munmap(bytes_, size_);
    }

    uint64_t size() const { return size_; }
    char* bytes() const { return bytes_; }

    /// Writes, if it fits. \return whether it did
    bool write(uint64_t address, std::string_view data) {
        if (address > size_ || data.size() > size_ - address) return false;
        std::memcpy(bytes_ + address, data.data(), data.size());
        return true;
    }

    /// A copy of what was ever touched; the rest is zeros in both.
    guest_memory copy() const {
        guest_memory other(size_);
        off_t begin = 0, end = 0;
        for (; (begin = lseek(file_.fd(), end, SEEK_DATA)) >= 0;) {
            end = lseek(file_.fd(), begin, SEEK_HOLE);
            std::memcpy(other.bytes_ + begin, bytes_ + begin, static_cast<size_t>(end - begin));
        }
        return other;
    }

private:
    [[noreturn]] void fail() const {
        throw failure(machine_failed, "no memory of " + std::to_string(size_ >> 20) + " MiB: " + std::strerror(errno));
    }

    file file_;
    uint64_t size_;
    char* bytes_{};
};
