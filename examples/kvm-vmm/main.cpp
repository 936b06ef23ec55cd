// SPDX-License-Identifier: MIT

/// \file
/// Options, devices, and the order of things: boot, perhaps save and continue, end. The main thread waits for signals
/// and does all that is not a vCPU's.

#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <optional>

#include "machine.hpp"

namespace {

constexpr char help[] =
    "Usage: kvm-vmm [options] GUEST\n\n"
    "Runs GUEST, an ELF64 with a PVH note, on /dev/kvm. Its serial port is standard output.\n\n"
    "  --vcpus N       1 to 254 (default 4)\n"
    "  --memory MIB    8 to 2048 (default 128)\n"
    "  --append TEXT   the guest's command line\n"
    "  --save-at TEXT  each time the guest has written TEXT: stop, save the whole machine, go on in a copy of it\n"
    "  --help\n\n"
    "The guest ends the run by writing a value to I/O port 0xf4. Exit codes: 0..63 that value (63 for every greater "
    "one),\n"
    "64 a bad option or guest file, 69 no usable /dev/kvm, 70 KVM failed, 125 the guest ended without a value, 128 + "
    "N\n"
    "signal N; 141 nobody reads standard output.\n";

struct options {
    std::string guest, append, save_at;
    uint32_t vcpus = 4, memory = 128;
};

uint32_t number(std::string const& option, std::string const& text, uint32_t least, uint32_t most) {
    bool const digits = !text.empty() && text.size() <= 6 && text.find_first_not_of("0123456789") == std::string::npos;
    auto const value = digits ? static_cast<uint32_t>(std::stoul(text)) : 0;
    if (value < least || value > most)
        throw failure(usage, option + " takes a number from " + std::to_string(least) + " to " + std::to_string(most) +
                                 ", not '" + text + "'");
    return value;
}

options parse(std::vector<std::string> const& arguments) {
    options o;
    for (size_t i = 0; i < arguments.size(); ++i) {
        std::string const& word = arguments[i];
        if (word.empty() || word[0] != '-') {
            if (!o.guest.empty()) throw failure(usage, "one guest at a time, not '" + o.guest + "' and '" + word + "'");
            o.guest = word;
            continue;
        }
        auto const known = {"--vcpus", "--memory", "--append", "--save-at"};
        if (std::find(known.begin(), known.end(), word) == known.end())
            throw failure(usage, "unknown option " + word + "; kvm-vmm --help names them all");
        if (++i == arguments.size()) throw failure(usage, word + " needs a value");
        if (word == "--vcpus") o.vcpus = number(word, arguments[i], 1, 254);
        if (word == "--memory") o.memory = number(word, arguments[i], 8, 2048);
        if (word == "--append") o.append = arguments[i];
        if (word == "--save-at") o.save_at = arguments[i];
    }
    if (o.guest.empty()) throw failure(usage, "which guest? kvm-vmm --help says more");
    return o;
}

file open_kvm() {
    file kvm(open("/dev/kvm", O_RDWR | O_CLOEXEC));
    if (kvm.fd() < 0 && errno == EACCES)
        throw failure(missing, "no permission on /dev/kvm: sudo usermod -aG kvm \"$USER\", then log in again");
    if (kvm.fd() < 0)
        throw failure(missing, std::string("/dev/kvm: ") + std::strerror(errno) +
                                   "; load kvm_intel or kvm_amd, or run this by tools/run-guest --on nested-kvm");
    if (ioctl(kvm.fd(), KVM_GET_API_VERSION, 0) != KVM_API_VERSION) throw failure(missing, "/dev/kvm is not KVM's");
    for (int needed : {KVM_CAP_IMMEDIATE_EXIT, KVM_CAP_PIT2, KVM_CAP_SIGNAL_MSI, KVM_CAP_ADJUST_CLOCK})
        if (ioctl(kvm.fd(), KVM_CHECK_EXTENSION, needed) <= 0)
            throw failure(missing, "this KVM lacks capability " + std::to_string(needed) + "; Linux 4.12 has it");
    return kvm;
}

/// What outlives a copy of the machine: the serial port's other end, and the wish to end or to save.
class outside {
public:
    explicit outside(std::string save_at) : save_at_(std::move(save_at)) {}

    /// For the vCPUs. \return whether this one goes on
    bool port(kvm_run& exit, uint8_t* data) {
        std::scoped_lock const lock(mutex_);
        uint16_t const port = exit.io.port;
        bool const out = exit.io.direction == KVM_EXIT_IO_OUT;
        if (!out) std::memset(data, port == serial + line_status ? 0x60 : 0xff, exit.io.count * exit.io.size);
        for (uint32_t i = 0; out && i < exit.io.count; ++i) {
            uint8_t const value = data[i * exit.io.size];
            if (port == exit_port) end({std::min<int>(value, 63), ""});
            if (port == serial + line_control) divisor_ = (value & 0x80) != 0;
            if (port == serial && !divisor_ && !end_) transmit(static_cast<char>(value));
        }
        return !end_;
    }
    void fail(failure const& f) {
        std::scoped_lock const lock(mutex_);
        end(f);
    }

    /// For the main thread.
    std::optional<failure> ended() {
        std::scoped_lock const lock(mutex_);
        return end_;
    }
    bool save_wanted() {
        std::scoped_lock const lock(mutex_);
        return std::exchange(save_wanted_, false);
    }
    void flush() {
        std::scoped_lock const lock(mutex_);
        flush_line();
    }

private:
    static constexpr uint16_t serial = 0x3f8, line_control = 3, line_status = 5, exit_port = 0xf4;

    void end(failure const& f) {
        if (!end_) end_ = f;
        (void)kill(getpid(), SIGUSR2);
    }
    void transmit(char c) {
        line_ += c;
        if (!save_at_.empty() && line_.ends_with(save_at_)) {
            save_wanted_ = true;
            (void)kill(getpid(), SIGUSR2);
        }
        if (c == '\n' || line_.size() == 4096) flush_line();
    }
    void flush_line() {
        bool const written =
            std::fwrite(line_.data(), 1, line_.size(), stdout) == line_.size() && std::fflush(stdout) == 0;
        line_.clear();
        if (!written) end({by_signal + SIGPIPE, ""});
    }

    std::mutex mutex_;
    std::string line_, save_at_;
    bool divisor_ = false, save_wanted_ = false;
    std::optional<failure> end_;
};

int run(options const& o) {
    // All signals are the main thread's, by sigwait(); a vCPU's thread is to be interrupted by its kick only.
    sigset_t signals;
    sigemptyset(&signals);
    for (int s : {SIGHUP, SIGINT, SIGTERM, SIGUSR2}) sigaddset(&signals, s);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    struct sigaction kicked {};
    kicked.sa_handler = [](int) {};
    sigaction(kick_signal, &kicked, nullptr);
    (void)std::signal(SIGPIPE, SIG_IGN);

    guest_memory memory(uint64_t{o.memory} << 20);
    boot_entry const entry = load_guest(memory, o.guest, o.append, o.vcpus);
    file const kvm = open_kvm();
    cpu_model const model(kvm, o.vcpus);
    outside world(o.save_at);
    auto const on_port = [&](kvm_run& exit, uint8_t* data) { return world.port(exit, data); };
    auto const on_failure = [&](failure const& f) { world.fail(f); };
    auto m = std::make_unique<machine>(kvm, model, o.vcpus, std::move(memory));
    m->first().start_at(entry);
    for (;;) {
        m->start(on_port, on_failure);
        int signal = 0;
        do sigwait(&signals, &signal);
        while (signal == SIGUSR2 && !world.ended() && !world.save_wanted());
        m->stop();
        auto const end = world.ended();
        if (end || signal != SIGUSR2) world.flush();
        if (signal != SIGUSR2) return by_signal + signal;
        if (end) {
            if (end->what()[0] != 0) throw *end;
            return end->code;
        }
        m = std::make_unique<machine>(kvm, model, m->save());
        std::fprintf(stderr, "kvm-vmm: saved the machine; it goes on in a copy\n");
    }
}

}  // namespace

int main(int count, char** arguments) {
    try {
        std::vector<std::string> const words(arguments + 1, arguments + count);
        if (std::find(words.begin(), words.end(), "--help") == words.end()) return run(parse(words));
        return std::fputs(help, stdout) < 0 || std::fflush(stdout) != 0 ? by_signal + SIGPIPE : 0;
    } catch (failure const& f) {
        std::fprintf(stderr, "kvm-vmm: error: %s\n", f.what());
        return f.code;
    } catch (std::exception const& e) {
        std::fprintf(stderr, "kvm-vmm: error: %s\n", e.what());
        return machine_failed;
    }
}
