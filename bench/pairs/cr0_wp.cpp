// SPDX-License-Identifier: MIT
#include <pvx/host/access_rights.hpp>

#include "support/operation.hpp"

using namespace pvx_bench;
using namespace pvx::host;
namespace page_fault = pvx::abi::page_fault;

namespace {

/// The rules as branches, as an emulator without a table has them.
bool permits(paging_rules rules, page_access access, page_rights page) {
    auto const holds = [&](uint32_t rule) { return (rules.bits & rule) != 0; };
    bool const user = (access.code & page_fault::user) != 0, users = (page.bits & page_fault::user) != 0;
    if (user && !users) return false;
    if ((access.code & page_fault::fetch) != 0)
        return ((page.bits & page_fault::fetch) != 0 || !holds(paging_rules::nx)) &&
               (user || !users || !holds(paging_rules::smep));
    if (!user && users && holds(paging_rules::smap) && !access.ac) return false;
    return (access.code & page_fault::write) == 0 || (page.bits & page_fault::write) != 0 ||
           (!user && !holds(paging_rules::wp));
}

/// Accesses of all kinds, too many for a branch predictor to learn their order.
struct accesses {
    struct one {
        page_access access;
        page_rights page;
    };
    one list[65536];
    uint32_t next = 0;

    accesses() {
        uint32_t random = 1;
        for (one& o : list) {
            random = random * 1664525 + 1013904223;
            uint32_t const kind = random >> 8 & 3;
            o.access.code = (random >> 10 & 1 ? page_fault::user : 0) | (kind == 1 ? page_fault::write : 0) |
                            (kind == 2 ? page_fault::fetch : 0);
            o.access.ac = (random >> 11 & 1) != 0;
            o.page.bits = random >> 12 & (page_fault::write | page_fault::user | page_fault::fetch);
        }
    }
    one const& another() { return list[next++ % 65536]; }
};

constexpr paging_rules rules{paging_rules::wp | paging_rules::smep | paging_rules::smap | paging_rules::nx};

bool const checking = add_pair(
    "access rights: one check, any kind", "pvx",
    [a = accesses(), r = rules]() mutable {
        auto const& one = a.another();
        forget(r);
        keep(access_fault(r, one.access, one.page));
    },
    "branches",
    [a = accesses(), r = rules]() mutable {
        auto const& one = a.another();
        forget(r);
        keep(permits(r, one.access, one.page));
    });

}  // namespace
