// SPDX-License-Identifier: MIT
// The smallest user of pvx: what does this CPU's hypervisor offer?
#include <pvx/arch/x86_64.hpp>
#include <pvx/pvx.hpp>

bool vmm_example_works();

int main() {
    auto const features = pvx::guest::detect_features(pvx::arch::x86_64{});
    auto const configuration = pvx::guest::configure(features, 4);
    // Of a process that may run anywhere, only this is certain.
    bool const sound = !configuration.clock || features.hypervisor_present;
    return sound && vmm_example_works() ? 0 : 1;
}
