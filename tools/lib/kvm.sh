# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2034,SC2154 # variables go from one file to another
#
# Is /dev/kvm good for an ordinary guest? That it exists, opens and answers KVM_CREATE_VM does not say so: a KVM without
# hardware support (PVM) does all three and then emulates a guest's kernel code, instruction by instruction. Measured on one:
# 2 million instructions a second, and Debian's kernel does not get through its start. So the question is put to a guest.

kvm_device=${PVX_KVM_DEVICE:-/dev/kvm} # for the tests
cpuinfo=${PVX_CPUINFO:-/proc/cpuinfo}  # for the tests
readonly kvm_probe_seconds=2

cpu_has_virtualisation() { grep -Eqw 'vmx|svm' "$cpuinfo"; }

# The reason why not is left in kvm_reason, the command that mends it, if there is one, in kvm_fix.
kvm_reason='' kvm_fix=''

kvm_opens() {
    kvm_reason='' kvm_fix=''
    if [[ ! -e $kvm_device ]]; then
        if cpu_has_virtualisation; then
            kvm_reason="no $kvm_device, though the CPU can virtualise: the module is not loaded"
            kvm_fix=$(as_root "modprobe -a kvm_intel kvm_amd")
        else
            kvm_reason="no $kvm_device (no vmx or svm in $cpuinfo)"
        fi
    elif [[ ! -r $kvm_device || ! -w $kvm_device ]]; then
        kvm_reason="no permission on $kvm_device: add yourself to group kvm, then log in again"
        kvm_fix="sudo usermod -aG kvm $(id -un)"
    elif ! { : <>"$kvm_device"; } 2>/dev/null; then
        kvm_reason="$kvm_device does not open (a container without the device?)"
    fi
    [[ -z $kvm_reason ]]
}

# kvm_usable DIRECTORY [emulated-too]: a scratch folder for the probe guest. Without the second argument a KVM that the CPU
# has no part in is refused without being tried, which saves two seconds.
kvm_usable() {
    kvm_opens || return 1
    if [[ ${2:-} != emulated-too ]] && ! cpu_has_virtualisation; then
        kvm_reason="$kvm_device opens, but $cpuinfo shows neither vmx nor svm: a KVM that emulates its guests' kernel code"
        return 1
    fi
    local status=0 words
    write_kvm_probe "$1/kvm-probe.elf"
    in_background timeout --kill-after=1 "$kvm_probe_seconds" qemu-system-x86_64 -M microvm -accel kvm -cpu host -m 32 \
        -nodefaults -no-user-config -no-reboot -nographic -device isa-debug-exit,iobase=0xf4,iosize=4 \
        -kernel "$1/kvm-probe.elf" </dev/null >"$1/kvm-probe.out" 2>&1 || status=$?
    case $status in
    43) return 0 ;; # (21 << 1) | 1
    124 | 137)
        kvm_reason="a guest of 30 million instructions on $kvm_device did not end in $kvm_probe_seconds seconds"
        cpu_has_virtualisation ||
            kvm_reason+=" ($cpuinfo shows neither vmx nor svm: guest kernel code is emulated)"
        ;;
    *)
        words=$(grep -m 1 'error:' "$1/kvm-probe.out" || grep -v 'warning:' "$1/kvm-probe.out" | tail -n 1)
        kvm_reason="a test guest on $kvm_device failed: ${words:-qemu ended with status $status}"
        ;;
    esac
    return 1
}

# The probe guest as bytes, because run-guest must work where there is no compiler. tests/tools/guests/kvm-probe.S is the same
# in assembly; the tests compare them.
write_kvm_probe() {
    local hex='' line
    while read -r line; do
        hex+=" ${line%%#*}"
    done <<'END'
        # ELF64 header: executable, x86-64, entry 0x1000c4, two program headers at 64
        7f 45 4c 46 02 01 01 00 00 00 00 00 00 00 00 00
        02 00 3e 00 01 00 00 00 c4 00 10 00 00 00 00 00
        40 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
        00 00 00 00 40 00 38 00 02 00 00 00 00 00 00 00
        # PT_LOAD, readable and executable: the whole file (224 bytes) at 0x100000
        01 00 00 00 05 00 00 00 00 00 00 00 00 00 00 00
        00 00 10 00 00 00 00 00 00 00 10 00 00 00 00 00
        e0 00 00 00 00 00 00 00 e0 00 00 00 00 00 00 00
        00 10 00 00 00 00 00 00
        # PT_NOTE, readable: 20 bytes at 0x1000b0
        04 00 00 00 04 00 00 00 b0 00 00 00 00 00 00 00
        b0 00 10 00 00 00 00 00 b0 00 10 00 00 00 00 00
        14 00 00 00 00 00 00 00 14 00 00 00 00 00 00 00
        04 00 00 00 00 00 00 00
        # the note: namesz 4, descsz 4, XEN_ELFNOTE_PHYS32_ENTRY, "Xen", 0x1000c4
        04 00 00 00 04 00 00 00 12 00 00 00 58 65 6e 00
        c4 00 10 00
        # 0x1000c4, 32-bit protected mode
        b9 80 96 98 00 #    mov $10000000, %ecx
        90             # 1: nop
        49             #    dec %ecx
        75 fc          #    jnz 1b
        b8 15 00 00 00 #    mov $21, %eax
        e7 f4          #    out %eax, $0xf4
        f4             # 2: hlt
        eb fd          #    jmp 2b
        cc cc cc cc cc cc cc cc cc
END
    # shellcheck disable=SC2059,SC2086 # the format is the bytes, one word each
    printf "$(printf '\\x%s' $hex)" >"$1"
}
