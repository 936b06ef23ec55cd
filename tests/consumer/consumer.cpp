// SPDX-License-Identifier: MIT
// The smallest user of pvx: what does this CPU's hypervisor offer?
#include <pvx/arch/x86_64.hpp>
#include <pvx/pvx.hpp>

int main() {
    auto const features = pvx::guest::detect_features(pvx::arch::x86_64{});
    auto const configuration = pvx::guest::configure(features, 4);
    // Of a process that may run anywhere, only this is certain.
    return configuration.clock && !features.hypervisor_present ? 1 : 0;
}
