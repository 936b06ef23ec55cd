# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2034,SC2154 # variables go from one file to another
#
# What the programs in tools/ share: messages, time, missing programs, and a clean end on every way out.
# Sourced, never run. A program sets `tool_name` first and calls `on_exit_cleanup` before it starts anything.

# Exit codes of tools/run-guest. 0..63 are the guest's own.
readonly exit_usage=64   # a bad option or a bad guest file
readonly exit_missing=69 # a program, a kernel, a module or a usable hypervisor is missing
readonly exit_machine=70 # the machine that should have run the guest failed
readonly exit_pipe=141   # nobody reads our standard output any more, as a shell reports SIGPIPE
readonly exit_timeout=124
readonly exit_no_value=125 # the guest ended without an exit value

verbose=${verbose:-no}
quiet=${quiet:-no}

say() { [[ $quiet = yes ]] || printf '%s: %s\n' "$tool_name" "$*" >&2; }
detail() { [[ $verbose = no ]] || printf '%s: %s\n' "$tool_name" "$*" >&2; }

# die CODE MESSAGE [COMMAND THAT FIXES IT]...
die() {
    local code=$1 message=$2 fix
    shift 2
    printf '%s: error: %s\n' "$tool_name" "$message" >&2
    for fix in "$@"; do
        printf '    %s\n' "$fix" >&2
    done
    exit "$code"
}

# --- time -------------------------------------------------------------------------------------------------------------

# Milliseconds since the epoch. The decimal mark of EPOCHREALTIME follows the locale.
now_ms() { printf '%s' $((10#${EPOCHREALTIME/[.,]/} / 1000)); }

# seconds_since MS: "3.4"
seconds_since() {
    local tenths=$((($(now_ms) - $1) / 100))
    printf '%d.%d' $((tenths / 10)) $((tenths % 10))
}

# step TEXT LOG COMMAND...: runs it so that a signal is handled at once, its output appended to the file LOG (- for no file). A
# second line when it took over two seconds.
step() {
    local text=$1 log=$2 start status=0
    shift 2
    start=$(now_ms)
    say "$text ..."
    if [[ $log = - ]]; then
        in_background "$@" || status=$?
    else
        in_background "$@" >>"$log" 2>&1 || status=$?
    fi
    if (($(now_ms) - start > 2000)); then
        say "$text: $(seconds_since "$start") s"
    fi
    return "$status"
}

# --- processes and folders that must not outlive us -------------------------------------------------------------------

child_pids=()
scratch_dirs=()

on_exit_cleanup() {
    trap clean_up EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

# A second signal must not interrupt this.
clean_up() {
    trap '' HUP INT TERM
    stop_children
    if ((${#scratch_dirs[@]})); then
        rm -rf -- "${scratch_dirs[@]}"
    fi
}

stop_children() {
    local pid
    for pid in "${child_pids[@]}"; do
        kill -TERM -- "$pid" 2>/dev/null || true
    done
    for pid in "${child_pids[@]}"; do
        # Two seconds for a clean end, then no more patience.
        for _ in {1..40}; do
            kill -0 -- "$pid" 2>/dev/null || break
            sleep 0.05
        done
        kill -KILL -- "$pid" 2>/dev/null || true
        wait "${pid#-}" 2>/dev/null || true
    done
    child_pids=()
}

forget_child() {
    local pid kept=()
    for pid in "${child_pids[@]}"; do
        [[ $pid = "$1" ]] || kept+=("$pid")
    done
    child_pids=("${kept[@]}")
}

# bash runs a trap only after the foreground command has ended, but interrupts `wait` for it.
in_background() {
    local pid status=0
    "$@" &
    pid=$!
    child_pids+=("$pid")
    wait "$pid" || status=$?
    forget_child "$pid"
    return "$status"
}

# The same for a function, or a program that has children of its own: with a process group, so that the end reaches them all.
in_group() {
    local pid status=0
    set -m
    "$@" </dev/null &
    pid=$!
    set +m
    child_pids+=("-$pid")
    wait "$pid" || status=$?
    forget_child "-$pid"
    return "$status"
}

# with_more_attempts COMMAND...: for a run-guest on nested KVM. The emulated machine under it resets or hangs a guest, or its
# Linux dies, now and then, and more often while others use this machine (docs/nested-kvm.md). What the guest itself finds
# wrong, its value 1, is final, and what goes wrong every time goes wrong three times.
with_more_attempts() {
    local status attempt
    for attempt in 1 2 3; do
        status=0
        "$@" || status=$?
        case $status in
        3 | 4 | "$exit_machine" | "$exit_no_value" | "$exit_timeout") ;;
        *) break ;;
        esac
        ((attempt < 3)) || break
        say "the guest was cut short (status $status), as it can be on an emulated machine; once more"
    done
    return "$status"
}

# scratch_dir VARIABLE [PARENT]: a new folder that is gone when we are. Sets a variable, because in $(...) the list of
# folders to remove would be a copy.
scratch_dir() {
    local -n made_=$1
    made_=$(mktemp -d "${2:-${TMPDIR:-/tmp}}/pvx-$tool_name.XXXXXX") || die "$exit_machine" "cannot make a temporary folder"
    scratch_dirs+=("$made_")
}

# --- what is missing --------------------------------------------------------------------------------------------------

have() { command -v "$1" >/dev/null 2>&1; }

as_root() { if ((EUID == 0)); then printf '%s' "$*"; else printf 'sudo %s' "$*"; fi; }

# need PROGRAM=DEBIAN-PACKAGE...: one message for all that is missing.
need() {
    local pair programs=() packages=()
    for pair in "$@"; do
        have "${pair%%=*}" && continue
        programs+=("${pair%%=*}")
        packages+=("${pair#*=}")
    done
    ((${#programs[@]})) || return 0
    if have apt-get; then
        die "$exit_missing" "missing: ${programs[*]}; install with" \
            "$(as_root apt-get install -y --no-install-recommends "${packages[@]}")"
    fi
    die "$exit_missing" "missing in PATH: ${programs[*]} (Debian has them in: ${packages[*]})"
}
