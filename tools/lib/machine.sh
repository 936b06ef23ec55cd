# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2034,SC2054,SC2154 # variables go from one file to another; commas are QEMU's
#
# Starts a QEMU, passes on what the guest writes, and turns the way it ended into an exit code. The machine of the guest is the
# same on every hypervisor; only accelerator, CPU and the way of its output differ.
#
# In: guest, guest_initrd, vcpus, memory, append, vmm, save_at, timeout, host_cpus, reset_ok, dry_run, exact, work (a scratch folder).

# guest_machine FILE INITRD: sets `machine`, for QEMU without accelerator and serial port.
guest_machine() {
    if [[ -n $vmm ]]; then
        machine=(--vcpus "$vcpus" --memory "$memory" --append "$append" --save-at "$save_at" "$1")
        return
    fi
    machine=(-M microvm -smp "$vcpus" -m "$memory" -nodefaults -no-user-config -no-reboot -nographic
        -device isa-debug-exit,iobase=0xf4,iosize=4 -kernel "$1")
    if [[ -n $2 ]]; then machine+=(-initrd "$2"); fi
    if [[ -n $append ]]; then machine+=(-append "$append"); fi
}

# --dry-run ends here.
planned() {
    [[ $dry_run = yes ]] || return 0
    printf '%q ' "$@"
    printf '\n'
    exit 0
}

# --- a machine under watch --------------------------------------------------------------------------------------------

# start_machine stderr|init COMMAND...: sets machine_pid, cat_pid, and `events`, a descriptor that gives lines and ends when
# the machine does: QEMU's standard error, or what L1's init writes (QEMU has that as descriptor 3).
#
# The guest's output goes through a pipe and cat: QEMU makes its standard output non-blocking, and that would reach everybody
# who shares our terminal.
start_machine() {
    local events_are=$1
    shift
    detail "$(printf '%q ' "$@")"
    rm -f "$work/output" "$work/events"
    mkfifo "$work/output" "$work/events"
    cat "$work/output" &
    cat_pid=$!
    if [[ $events_are = stderr ]]; then
        in_child "$@" </dev/null >"$work/output" 2>"$work/events" &
    else
        in_child "$@" </dev/null >"$work/output" 3>"$work/events" 2>"$work/qemu.err" &
    fi
    machine_pid=$!
    child_pids+=("$machine_pid" "$cat_pid") # cat last: when the machine is gone, cat ends by itself
    exec {events}<"$work/events"
}

# The machine ends with us, even if that is by SIGKILL.
in_child() {
    if have setpriv; then exec setpriv --pdeathsig KILL -- "$@"; fi
    exec "$@"
}

partial_line=''

# next_event: the next line in `line`. Fails when there is none, with the reason in `ended`: gone (the machine), timeout (of
# `deadline`, in milliseconds) or unread (nobody reads our output).
next_event() {
    local left status
    while :; do
        # No $(...) in this loop: a signal to our process group would end the subshell first, and leave a syntax error.
        left=$((deadline - 10#${EPOCHREALTIME/[.,]/} / 1000))
        if ((left <= 0)); then ended=timeout && return 1; fi
        if ((left > 500)); then left=500; fi
        status=0
        printf -v left '%d.%03d' $((left / 1000)) $((left % 1000))
        IFS= read -r -t "$left" -u "$events" line || status=$?
        line=$partial_line$line
        partial_line=''
        if ((status == 0)); then line=${line%$'\r'} && return 0; fi
        if ((status <= 128)); then ended=gone && return 1; fi
        partial_line=$line
        if ! kill -0 "$cat_pid" 2>/dev/null; then ended=unread && return 1; fi
    done
}

kvm_error='' qemu_error=''

# qemu_said LINE: on QEMU's standard error, wherever it runs.
qemu_said() {
    case $1 in
    *warning:*) detail "$1" && return ;;
    'KVM internal error'* | 'error: kvm run failed'*)
        # QEMU writes the registers and then waits for ever.
        kvm_error=$1
        deadline=$(($(now_ms) + 1000))
        ;;
    qemu*) qemu_error=$1 ;;
    esac
    printf '%s\n' "$1" >&2
}

# vmm_ended_with STATUS: of a VMM whose exit codes are ours.
vmm_ended_with() {
    local status=$1
    case $status in
    "$exit_no_value")
        [[ $reset_ok = no ]] || exit 0
        die "$exit_no_value" "the guest ended without an exit value: a triple fault, a reset or a power off"
        ;;
    "$exit_usage" | "$exit_missing" | "$exit_machine") die "$status" "${vmm##*/} could not run the guest" ;;
    "$exit_pipe") exit "$exit_pipe" ;;
    esac
    if ((status > 128)); then die "$exit_machine" "${vmm##*/} was killed by signal $((status - 128))"; fi
    if ((status > 63)); then die "$exit_machine" "${vmm##*/} ended with status $status"; fi
    ((status == 0)) || say "the guest exited with value $status"
    exit "$status"
}

# machine_ended_with STATUS: QEMU ran the guest to some end; our exit code follows from it.
machine_ended_with() {
    local status=$1
    if [[ -n $vmm ]]; then vmm_ended_with "$status"; fi
    local value=$((status >> 1)) # isa-debug-exit: (value << 1) | 1
    if ((status == 1)) && [[ -n $qemu_error ]]; then
        die "$exit_machine" "QEMU could not run the guest" # it exits with 1 too, but never without a message
    elif ((status == 0)) && [[ $reset_ok = yes ]]; then
        exit 0
    elif ((status == 0)); then
        die "$exit_no_value" "the guest ended without an exit value: a triple fault, a reset or a power off"
    elif ((status == 134 || status == 137 || status == 139 || status == 143)); then
        die "$exit_machine" "QEMU was killed by signal $((status - 128))"
    elif ((status % 2)); then
        ((value == 0)) || say "the guest exited with value $value"
        exit $((value < 63 ? value : 63))
    fi
    die "$exit_machine" "QEMU ended with status $status"
}

# We ended it: `ended` is timeout or unread.
machine_stopped() {
    if [[ $ended = unread ]]; then exit "$exit_pipe"; fi
    if [[ -n $kvm_error ]]; then die "$exit_machine" "KVM could not run the guest any further: $kvm_error"; fi
    die "$exit_timeout" "the guest did not end within $timeout s and was killed" "--timeout SECONDS allows more"
}

# --- on this machine --------------------------------------------------------------------------------------------------

# run_here ACCELERATOR CPU
run_here() {
    local pinned='' command=() status=0
    guest_machine "$guest" "$guest_initrd"
    if [[ -n $host_cpus ]]; then
        pinned=$(first_cpus "$host_cpus")
        command=(taskset -c "$pinned")
    fi
    if [[ -n $vmm ]]; then
        command+=("$(readlink -f "$vmm")" "${machine[@]}")
    else
        command+=(qemu-system-x86_64 -accel "$1" -cpu "$2" "${machine[@]}"
            -chardev stdio,id=serial,signal=off -serial chardev:serial)
    fi
    planned "${command[@]}"
    start_machine stderr "${command[@]}"
    deadline=$(($(now_ms) + timeout * 1000))
    while next_event; do qemu_said "$line"; done
    if [[ $ended != gone ]]; then machine_stopped; fi
    wait "$machine_pid" || status=$?
    wait "$cat_pid" || true
    machine_ended_with "$status"
}

# first_cpus N: of those that we may run on, as "0,1"
first_cpus() {
    local list range cpu cpus=()
    list=$(taskset -cp $$)
    for range in $(tr ',' ' ' <<<"${list##*: }"); do
        for ((cpu = ${range%-*}; cpu <= ${range#*-}; cpu++)); do cpus+=("$cpu"); done
    done
    ((${#cpus[@]} >= $1)) || die "$exit_usage" "--host-cpus $1: there are only ${#cpus[@]}"
    local IFS=,
    printf '%s' "${cpus[*]:0:$1}"
}

# --- in a Linux on emulated SVM (see nested.sh) -----------------------------------------------------------------------

readonly l1_boot_seconds=120 # 3 to 5 on an idle machine

run_nested() {
    local image l1 emulator=(-accel tcg,thread=multi)
    # The clock of all devices and of the TSC is then the number of instructions executed; while all CPUs are idle it jumps
    # to the next timer.
    if [[ $exact = yes ]]; then emulator=(-accel tcg,thread=single -icount "shift=0,sleep=off"); fi
    need busybox=busybox-static cpio=cpio
    if [[ -z $kernel_image ]]; then
        kernel_of_series "$kernel_series"
    else
        kernel_name=${kernel_image##*/}
    fi
    l1_image "$modules_dir"
    guest_machine /run/guest "${guest_initrd:+/run/initrd}"
    pack_run
    host_cpus=${host_cpus:-2}
    # The guest's, the initramfs twice, and 300 MB for Linux and QEMU.
    local l1_memory=$((memory + 420))
    # A saved machine and its copy are there at once.
    if [[ -n $vmm ]]; then l1_memory=$((2 * memory + 200)); fi
    l1=(qemu-system-x86_64 -M pc "${emulator[@]}" -cpu EPYC-Milan,+svm,+npt -smp "$host_cpus" -m "$l1_memory"
        -nodefaults -no-user-config -no-reboot -nographic -kernel "$kernel_image" -initrd "$work/initrd"
        -chardev "file,id=console,path=$work/console" -serial chardev:console
        -chardev stdio,id=guest,signal=off -serial chardev:guest
        -chardev file,id=events,path=/dev/fd/3 -serial chardev:events
        -append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr cryptomgr.notests init_on_alloc=0 $kernel_append")
    planned "${l1[@]}"
    local attempt
    for attempt in 1 2 3; do
        boot_nested && break
        say "the outer Linux crashed while it booted, as it rarely does under emulation; trying again"
    done
    {
        grep -v 'warning: TCG' "$work/qemu.err"
        tail -n 15 "$work/console" | tr -d '\r'
    } >&2 2>/dev/null || true
    case $ended in
    timeout) die "$exit_machine" "the outer Linux ($kernel_name) has no /dev/kvm after $l1_boot_seconds s; above, its console" ;;
    *) die "$exit_machine" "the outer Linux ($kernel_name) ended too early; above, its console" ;;
    esac
}

# Ends the program as the guest ended. Returns only if the outer Linux never came to start it: 1 if that is worth another
# attempt, 0 if not.
#
# It is after an exception in the kernel. Seen once in about 60 boots of 6.12, when it marked its TSC unstable: RIP was one
# byte into the two-byte NOP of a static branch, as if a CPU had run into the INT3 of the patching after it was gone.
boot_nested() {
    local start phase=boot
    say "booting Linux $kernel_name on $host_cpus emulated CPUs ..."
    start=$(now_ms)
    start_machine init "${l1[@]}"
    deadline=$((start + l1_boot_seconds * 1000))
    while next_event; do
        case $line in
        start)
            phase=guest
            say "its /dev/kvm is there after $(seconds_since "$start") s; starting the guest with ${vcpus%%,*} vCPUs"
            deadline=$(($(now_ms) + timeout * 1000))
            ;;
        'qemu '*) qemu_said "${line#qemu }" ;;
        'fail '*) die "$exit_machine" "in the outer Linux: ${line#fail }" ;;
        'exit '*)
            stop_children
            machine_ended_with "${line#exit }"
            ;;
        esac
    done
    if [[ $ended = unread || ($ended = timeout && $phase = guest) ]]; then machine_stopped; fi
    stop_children
    exec {events}<&-
    if [[ $phase = boot ]] && grep -q 'not syncing: Fatal exception' "$work/console"; then return 1; fi
}

# A second archive with the guest and how to run it. The kernel wants it to begin at a multiple of 4; cpio pads to 512.
pack_run() {
    local root=$work/root
    mkdir -p "$root/run"
    cp -L "$guest" "$root/run/guest"
    if [[ -n $guest_initrd ]]; then cp -L "$guest_initrd" "$root/run/initrd"; fi
    if [[ -n $kvm_options ]]; then printf '%s\n' "$kvm_options" >"$root/run/kvm-options"; fi
    if [[ -n $vmm ]]; then
        cp -L "$vmm" "$root/run/vmm"
        printf '%s\n' "${machine[@]}" >"$root/run/arguments"
    else
        printf '%s\n' -L /firmware -accel kvm -cpu host "${machine[@]}" \
            -chardev file,id=serial,path=/tmp/output -serial chardev:serial >"$root/run/arguments"
    fi
    archive "$root" | cat "$image" - >"$work/initrd"
}
