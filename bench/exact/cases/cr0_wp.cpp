// SPDX-License-Identifier: MIT
#include <pvx/host/access_rights.hpp>
#include <pvx/host/cr0_wp.hpp>

#include "case.hpp"

namespace {

using exact::counting, exact::plain;
using namespace pvx::abi;
using pvx::host::lazy_cr0;

/// A host whose mmu's requests are one store each.
template <class Machine>
struct environment : Machine {
    static inline uint32_t requests = 0;

    uint64_t guest_cr0() const { return exact::host.msr; }
    bool direct_map() const { return true; }
    void refresh_permissions() const { requests |= 1; }
    void reload_roots() const { requests |= 2; }
    void flush_guest_tlb() const { requests |= 4; }
    bool reload_pdptes() const { return true; }
};

constexpr uint64_t paging = cr0::pe | cr0::et | cr0::ne | cr0::pg;
constexpr uint64_t cr4_bits = cr4::pae | cr4::smep | cr4::smap;
constexpr uint64_t efer_bits = msr::efer::long_mode_enable | msr::efer::long_mode_active | msr::efer::no_execute_enable;

template <class Machine>
EXACT_OPERATION uint64_t read(lazy_cr0& cr0, uint64_t bits) {
    return cr0.read(bits, environment<Machine>{});
}

template <class Machine>
EXACT_OPERATION uint32_t access(lazy_cr0& cr0, uint64_t cr4, uint64_t efer, uint32_t code,
                                pvx::host::page_rights page) {
    return pvx::host::access_fault(cr0, cr4, efer, {code, false}, page, environment<Machine>{});
}

template <class Machine>
EXACT_OPERATION pvx::host::cr0_decision decide(pvx::host::cr0_inputs const& in) {
    return pvx::host::decide(in);
}

template <class Machine>
EXACT_OPERATION bool write(lazy_cr0& cr0, pvx::host::cr0_inputs const& in) {
    return write_cr0(cr0, in, environment<Machine>{}).refusal == pvx::host::cr0_refusal::none;
}

// Calls with a CR0 of which the guest owns TS and WP, and has run.
template <class Call, class Prepare, class... Arguments>
void with(Call call, Prepare prepare, Arguments... arguments) {
    environment<typename Call::machine> const env{};
    exact::host.msr = paging | cr0::wp;
    lazy_cr0 cr0(paging);
    cr0.give(cr0::ts | cr0::wp, env);
    cr0.exited();
    prepare(cr0, env);
    call(cr0, arguments...);
}

constexpr auto as_it_is = [](lazy_cr0&, auto const&) {};
constexpr auto fetched = [](lazy_cr0& cr0, auto const& env) { (void)cr0.read(cr0::wp, env); };
constexpr auto all_the_hosts = [](lazy_cr0& cr0, auto const& env) { cr0.give(0, env), cr0.exited(); };
constexpr pvx::host::cr0_inputs toggle{
    .old_cr0 = paging | cr0::wp, .written = paging, .cr4 = cr4_bits, .efer = efer_bits, .cs_l = true};
constexpr pvx::host::page_rights read_only{page_fault::user | page_fault::fetch};

exact::test_case const list[] = {
    {"cr0_wp/read, a bit of the host's", read<plain>, read<counting>,
     [](auto call) { with(call, as_it_is, uint64_t{cr0::pg}); }},
    {"cr0_wp/read, WP of the guest's, the first time", read<plain>, read<counting>,
     [](auto call) { with(call, as_it_is, uint64_t{cr0::wp}); }},
    {"cr0_wp/read, WP of the guest's, again", read<plain>, read<counting>,
     [](auto call) { with(call, fetched, uint64_t{cr0::wp}); }},
    {"cr0_wp/access check, WP of the guest's, the first time", access<plain>, access<counting>,
     [](auto call) { with(call, as_it_is, cr4_bits, efer_bits, page_fault::write, read_only); }},
    {"cr0_wp/access check, WP of the host's", access<plain>, access<counting>,
     [](auto call) { with(call, all_the_hosts, cr4_bits, efer_bits, page_fault::write, read_only); }},
    {"cr0_wp/decide, WP cleared in 64-bit mode, shadow paging", decide<plain>, decide<counting>,
     [](auto call) { call(toggle); }},
    {"cr0_wp/write_cr0, WP cleared in 64-bit mode, direct paging", write<plain>, write<counting>,
     [](auto call) { with(call, all_the_hosts, toggle); }},
};
exact::component const here{list};

}  // namespace
