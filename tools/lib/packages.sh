# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2154 # variables go from one file to another
#
# Getting what a program of tools/ needs from Debian, after asking. Sourced after common.sh.

is_debian() { have apt-get && have dpkg-query; }

installed() { [[ $(dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null) = ii* ]]; }

# Runs a command as root: as it is for root, by sudo for others.
privileged() {
    if ((EUID == 0)); then
        "$@"
    elif have sudo; then
        sudo "$@"
    else
        die "$exit_missing" "this needs root, and there is no sudo; as root:" "$*"
    fi
}

# confirm QUESTION: yes without asking if assume_yes, or if there is no terminal to ask on.
confirm() {
    local answer
    [[ $assume_yes = yes || ! -t 0 ]] && return 0
    read -r -p "$1 [Y/n] " answer || return 1
    [[ -z $answer || $answer = [Yy]* ]]
}

apt_options=(-o Dpkg::Use-Pty=0 -o APT::Install-Recommends=false -o DPkg::Lock::Timeout=120)

# install_packages LOG PACKAGE...: installs those that are missing. Elsewhere than on Debian it names them and goes on.
install_packages() {
    local log=$1 package missing=()
    shift
    if ! is_debian; then
        say "not a Debian system: going on with what is in PATH. On Debian 12 the packages would be: $*"
        return 0
    fi
    for package in "$@"; do
        installed "$package" || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    say "missing packages; this installs them:"
    printf '    %s\n' "$(as_root apt-get update) && $(as_root apt-get install -y --no-install-recommends "${missing[@]}")" >&2
    confirm "install them now?" || die "$exit_missing" "cannot go on without them"
    if ((EUID != 0)) && have sudo; then
        sudo -v || die "$exit_missing" "sudo was refused"
    fi
    update_lists "$log"
    step "installing ${#missing[@]} packages" "$log" \
        privileged env DEBIAN_FRONTEND=noninteractive apt-get "${apt_options[@]}" install -y -q "${missing[@]}" ||
        die "$exit_missing" "apt-get install failed: $(sed -n 's/^E: //p' "$log" | head -n 1)" "the whole output is in $log"
}

lists_updated=no

update_lists() {
    [[ $lists_updated = no ]] || return 0
    step "updating package lists" "$1" privileged apt-get "${apt_options[@]}" update -q ||
        say "apt-get update failed; going on with the lists that are there ($(sed -n 's/^E: //p' "$1" | head -n 1))"
    lists_updated=yes
}

# kernels_at_hand LOG SERIES...: makes sure that tools/run-guest can fetch these kernels, if it has not got them yet.
kernels_at_hand() {
    local log=$1 series cache=${PVX_CACHE:-${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/pvx}
    shift
    is_debian || return 0
    for series in "$@"; do
        [[ -e $cache/kernels/$series/name ]] && continue
        # Lists that are old name packages that are no longer there.
        update_lists "$log"
        return 0
    done
}
