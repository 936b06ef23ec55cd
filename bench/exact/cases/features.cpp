// SPDX-License-Identifier: MIT
#include "case.hpp"

namespace {

using exact::counting, exact::plain;

template <class>
EXACT_OPERATION bool has(pvx::guest::features const& f) {
    return f.has(pvx::abi::kvm_feature::pv_send_ipi);
}

template <class Machine>
EXACT_OPERATION void detect(pvx::guest::features& out) {
    out = pvx::guest::detect_features(Machine{});
}

constinit pvx::guest::features found{};

exact::test_case const list[] = {
    {"features/has", has<plain>, has<counting>, [](auto call) { call(found); }},
    {"features/detect, KVM", detect<plain>, detect<counting>, [](auto call) { call(found); }},
};
exact::component const here{list};

}  // namespace
