// SPDX-License-Identifier: MIT
#pragma once

/// \file
/// The guest's memory: from address 0 on, in one piece.

#include "kvm.hpp"

class guest_memory {
public:
    explicit guest_memory(size_t size)
        : file_(checked(memfd_create("guest", MFD_CLOEXEC), "memfd_create")),
          map_((checked(ftruncate(file_.fd(), static_cast<off_t>(size)), "ftruncate"), file_), size) {}

    size_t size() const { return map_.size(); }
    char* bytes() const { return map_.bytes(); }

    /// Writes, if it fits. \return whether it did
    bool write(uint64_t address, std::string_view data) {
        if (address > size() || data.size() > size() - address) return false;
        std::memcpy(bytes() + address, data.data(), data.size());
        return true;
    }

    /// A copy of what was ever touched; the rest is zeros in both.
    guest_memory copy() const {
        guest_memory other(size());
        for (off_t begin = 0, end = 0; (begin = lseek(file_.fd(), end, SEEK_DATA)) >= 0;) {
            end = lseek(file_.fd(), begin, SEEK_HOLE);
            checked(end < 0 ? -1 : 0, "SEEK_HOLE");
            std::memcpy(other.bytes() + begin, bytes() + begin, static_cast<size_t>(end - begin));
        }
        checked(errno == ENXIO ? 0 : -1, "SEEK_DATA");  // no more data
        return other;
    }

private:
    file file_;
    mapping map_;
};
