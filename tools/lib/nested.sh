# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2034,SC2154 # variables go from one file to another
#
# Real KVM on a machine that has none. QEMU's TCG emulates AMD SVM with nested paging, so an ordinary Linux kernel on it offers
# a real /dev/kvm. This file gets that Linux (L1) and builds its initramfs: busybox, QEMU unless there is another VMM, the KVM
# modules, and an init that runs one guest.
#
#   serial port 1   L1's console, kept for error reports
#   serial port 2   the guest's own serial port, byte for byte
#   serial port 3   what happens, one line each: kvm | start | qemu TEXT | fail TEXT | exit STATUS
#
# The initramfs is not compressed: with 54 MB as they are, init began after 4.3 s, with gzip -1 after 6.5 s. A run adds a second
# small archive with the guest (the kernel takes several in a row); that costs 0.05 s.
#
# $cache/
#   kernels/SERIES/{name,vmlinuz,*.ko}   out of Debian's package, put there by one rename
#   images/KEY.cpio                      KEY stands for everything in it; put there by one rename
#   lock                                 held while something is added

cache=${PVX_CACHE:-${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/pvx}

lock_cache() {
    mkdir -p "$cache/kernels" "$cache/images" 2>/dev/null ||
        die "$exit_missing" "cannot write to the cache folder $cache" "PVX_CACHE=/some/other/folder $0 ..."
    exec {cache_lock}>"$cache/lock"
    if ! flock -n "$cache_lock"; then
        step "waiting for another run to finish with $cache" - flock "$cache_lock"
    fi
    # What a killed run left behind.
    find "$cache" -maxdepth 1 -name 'pvx-*.??????' -mmin +120 -exec rm -rf -- {} +
}

unlock_cache() { exec {cache_lock}>&-; }

# --- the kernel -------------------------------------------------------------------------------------------------------

without_apt="or bring any Linux with KVM for AMD: --kernel-image FILE --modules DIR (needs irqbypass, kvm and kvm-amd)"

# The package that the wanted series' metapackage depends on: linux-image-6.1.0-57-cloud-amd64 for 6.1.
kernel_package() {
    local series=$1 meta name
    for meta in "linux-image-$series-cloud-amd64" linux-image-cloud-amd64; do
        name=$(LC_ALL=C apt-cache depends --important "$meta" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
        [[ $name = "linux-image-$series."* ]] && printf '%s' "$name" && return
    done
    return 1
}

download_into() {
    cd "$1" && apt-get download -q -o Acquire::Retries=1 -o Acquire::http::Timeout=20 "$2"
}

# kernel_of_series SERIES: sets kernel_image, kernel_name and modules_dir; fetches what is not there yet.
kernel_of_series() {
    local series=$1 dir=$cache/kernels/$1
    if [[ ! -e $dir/name ]]; then
        lock_cache
        [[ -e $dir/name ]] || fetch_kernel "$series" "$dir"
        unlock_cache
    fi
    kernel_image=$dir/vmlinuz kernel_name=$(<"$dir/name") modules_dir=$dir
}

fetch_kernel() {
    local series=$1 dir=$2 package tmp image
    if ! have apt-get || ! have dpkg-deb; then
        die "$exit_missing" "no Linux $series in $cache, and no apt-get here to fetch Debian's" "$without_apt" \
            "or run without it: --on tcg, or --on kvm where /dev/kvm works"
    fi
    package=$(kernel_package "$series") ||
        die "$exit_missing" "apt knows no linux-image-$series-cloud-amd64 (no package lists, or another release)" \
            "$(as_root apt-get update)" "$without_apt"
    scratch_dir tmp "$cache"
    if ! step "fetching $package (about 30 MB, once)" "$tmp/log" download_into "$tmp" "$package"; then
        die "$exit_missing" "apt-get could not fetch $package: $(sed -n 's/^E: //p' "$tmp/log" | head -n 1)" \
            "$(as_root apt-get update)    # if the network is there and the package lists are old" "$without_apt"
    fi
    step "unpacking it" "$tmp/log" dpkg-deb -x "$tmp"/*.deb "$tmp/root" ||
        die "$exit_missing" "dpkg-deb could not unpack $package: $(tail -n 1 "$tmp/log")"
    image=$(find "$tmp/root/boot" -name 'vmlinuz-*')
    mkdir "$tmp/new"
    cp "$image" "$tmp/new/vmlinuz"
    find_modules "$tmp/root/lib/modules"
    cp "${module_files[@]}" "$tmp/new"
    printf '%s\n' "${image##*/vmlinuz-}" >"$tmp/new/name"
    rm -rf -- "$dir" # a folder without a name is not ours
    mv "$tmp/new" "$dir"
    rm -rf -- "$tmp"
}

# --- modules ----------------------------------------------------------------------------------------------------------

uncompress() {
    case $1 in
    *.xz) busybox xz -dc "$1" ;;
    *.gz) gzip -dc "$1" ;;
    *.zst) zstd -qdc "$1" ;;
    *) cat "$1" ;;
    esac
}

# find_modules DIR: module_files becomes kvm-amd and what it depends on, in the order of loading.
find_modules() {
    module_files=() modules_seen=' '
    add_module "$1" kvm-amd
}

add_module() {
    local dir=$1 name=$2 file needs
    [[ $modules_seen = *" $name "* ]] && return
    modules_seen+="$name "
    file=$(find "$dir" -name "${name//[-_]/[-_]}.ko*" | head -n 1)
    if [[ -z $file ]]; then
        # Without a list of what is built in, a dependency that is no file is taken to be built in; insmod will tell.
        [[ $name != kvm-amd ]] && ! grep -rqs "/${name//[-_]/[-_]}\.ko" --include=modules.dep "$dir" && return
        die "$exit_missing" "module $name.ko is not under $dir" "$without_apt"
    fi
    if [[ $file = *.zst ]]; then need zstd=zstd; fi
    # "depends=kvm,ccp", NUL-terminated, in the section .modinfo
    for needs in $(uncompress "$file" | tr '\0' '\n' | sed -n 's/^depends=//p' | tr ',' ' '); do
        add_module "$dir" "$needs"
    done
    module_files+=("$file")
}

# --- the initramfs ----------------------------------------------------------------------------------------------------

# Every file that goes in as it is: name here, then the same name in there.
programs_and_libraries() {
    local program
    for program in "${programs[@]}"; do
        readlink -f "$program"
        ldd "$program" 2>/dev/null | grep -o '/[^ ]*' || true # nothing if it is static
    done | sort -u
}

firmware_files() {
    local name dir
    for name in bios-microvm.bin pvh.bin linuxboot_dma.bin; do
        while read -r dir; do
            [[ -e $dir/$name ]] && printf '%s\n' "$dir/$name" && continue 2
        done < <(qemu-system-x86_64 -L help)
        die "$exit_missing" "QEMU's firmware file $name is missing" "$(as_root apt-get install -y --no-install-recommends qemu-system-data seabios)"
    done
}

# l1_image DIR: sets image to the initramfs for the modules in DIR.
l1_image() {
    local key files programs firmware=()
    find_modules "$1"
    programs=("$(command -v busybox)")
    if [[ -z $vmm ]]; then
        programs+=("$(command -v qemu-system-x86_64)")
        firmware=$(firmware_files) || exit
        mapfile -t firmware <<<"$firmware"
    fi
    mapfile -t files < <(programs_and_libraries)
    key=$({
        stat -Lc '%n %s %Y' "${files[@]}" "${firmware[@]}" "${module_files[@]}"
        l1_init
    } | sha256sum)
    image=$cache/images/${key:0:16}.cpio
    if [[ ! -e $image ]]; then
        lock_cache
        [[ -e $image ]] || step "building the initramfs (once)" - build_image
        unlock_cache
    fi
    touch -c "$image"
}

build_image() {
    local tmp root file module
    # In the background, so with a list of scratch folders of its own.
    scratch_dirs=()
    child_pids=()
    on_exit_cleanup
    scratch_dir tmp "$cache"
    root=$tmp/root
    mkdir -p "$root"/{bin,dev,proc,sys,tmp,run,modules,firmware}
    for file in "${files[@]}"; do
        mkdir -p "$root${file%/*}"
        cp -L "$file" "$root$file"
    done
    ln -sf "$(readlink -f "$(command -v busybox)")" "$root/bin/busybox"
    if [[ -z $vmm ]]; then
        ln -sf "$(readlink -f "$(command -v qemu-system-x86_64)")" "$root/bin/qemu"
        cp -L "${firmware[@]}" "$root/firmware"
    fi
    for file in "${module_files[@]}"; do
        module=${file##*/}
        module=${module%%.ko*}.ko
        uncompress "$file" >"$root/modules/$module"
        printf '%s\n' "$module" >>"$root/modules/order"
    done
    l1_init >"$root/init"
    chmod 755 "$root/init"
    archive "$root" >"$tmp/cpio"
    find "$cache/images" -name '*.cpio' -mtime +30 -delete
    mv "$tmp/cpio" "$image"
}

archive() { (cd "$1" && find . -mindepth 1 | LC_ALL=C sort | cpio -o -H newc -R 0:0 --quiet); }

l1_init() {
    cat <<'EOF_INIT'
#!/bin/busybox sh
# The init of L1: loads KVM, runs the guest, says how it ended. See tools/lib/nested.sh.
busybox=/bin/busybox
$busybox mount -t proc proc /proc
$busybox mount -t sysfs sys /sys
$busybox mount -t devtmpfs dev /dev
$busybox stty -F /dev/ttyS1 raw -echo

event() { echo "$*" >/dev/ttyS2; }
stop() { event "$@"; $busybox sleep 10; $busybox poweroff -f; }

options=
[ -e /run/kvm-options ] && read -r options </run/kvm-options
while read -r module; do
    with=
    [ "$module" = kvm-amd.ko ] && with=$options
    message=$($busybox insmod "/modules/$module" $with 2>&1) || stop fail "insmod $module $with: $message"
done </modules/order
[ -e /dev/kvm ] || stop fail "the modules are loaded, but there is no /dev/kvm"
event kvm

set --
while IFS= read -r argument; do
    set -- "$@" "$argument"
done </run/arguments

# A vCPU waits for every byte it writes. A pipe takes one in two thirds of the time that a serial port takes (64 KiB: 35 s, 46 s).
# Descriptor 4 keeps it open until the VMM has ended, or has not even begun.
$busybox mkfifo /tmp/output /tmp/stderr
exec 4<>/tmp/output
$busybox cat </tmp/output >/dev/ttyS1 4>&- &
while IFS= read -r line; do event "qemu $line"; done </tmp/stderr 4>&- &
event start
if [ -e /run/vmm ]; then
    /run/vmm "$@" </dev/null >/tmp/output 2>/tmp/stderr 4>&-
else
    /bin/qemu "$@" </dev/null 2>/tmp/stderr 4>&-
fi
status=$?
exec 4>&-
wait
stop exit "$status"
EOF_INIT
}
