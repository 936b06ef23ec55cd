// SPDX-License-Identifier: MIT

/// \file
/// Options, devices, and the order of things: boot, perhaps save and go on, end. The main thread waits for signals and
/// does all that is not a vCPU's.

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>

#include "machine.hpp"

namespace {

constexpr char help[] = R"(Usage: kvm-vmm [options] GUEST

Runs GUEST, an ELF64 with a PVH note, on /dev/kvm. Its serial port is standard output.

  --vcpus N       1 to 254 (default 4)
  --memory MIB    8 to 2048 (default 128)
  --append TEXT   the guest's command line
  --save-at TEXT  20 ms after the guest has written TEXT, each time: stop, save the whole machine, go on in a copy of it
  --help

The guest ends the run by writing a value to I/O port 0xf4. Exit codes: 0..63 that value (63 for every greater one), 64 a bad
option or guest file, 69 no usable /dev/kvm, 70 KVM failed, 125 the guest ended without a value, 128 + N signal N; 141 nobody
reads standard output.
)";

struct options {
    std::string guest, append, save_at;
    uint32_t vcpus = 4, memory = 128;
};

uint32_t number(std::string const& option, std::string const& text, uint32_t least, uint32_t most) {
    bool const digits = !text.empty() && text.size() <= 6 && text.find_first_not_of("0123456789") == std::string::npos;
    unsigned long const value = digits ? std::stoul(text) : 0;
    if (value >= least && value <= most) return static_cast<uint32_t>(value);
    throw failure(usage, option + " takes a number from " + std::to_string(least) + " to " + std::to_string(most) +
                             ", not '" + text + "'");
}

options parse(std::vector<std::string> const& words) {
    options o;
    auto const known = {"--vcpus", "--memory", "--append", "--save-at"};
    for (auto word = words.begin(); word != words.end(); ++word) {
        if (!word->starts_with("-")) {
            if (!o.guest.empty())
                throw failure(usage, "one guest at a time, not '" + o.guest + "' and '" + *word + "'");
            o.guest = *word;
            continue;
        }
        std::string const& name = *word;
        if (std::find(known.begin(), known.end(), name) == known.end())
            throw failure(usage, "unknown option " + name + "; kvm-vmm --help names them all");
        if (++word == words.end()) throw failure(usage, name + " needs a value");
        if (name == "--vcpus") o.vcpus = number(name, *word, 1, 254);
        if (name == "--memory") o.memory = number(name, *word, 8, 2048);
        if (name == "--append") o.append = *word;
        if (name == "--save-at") o.save_at = *word;
    }
    if (o.guest.empty()) throw failure(usage, "which guest? kvm-vmm --help says more");
    return o;
}

file open_kvm() {
    file kvm(open("/dev/kvm", O_RDWR | O_CLOEXEC));
    if (kvm.fd() < 0)
        throw failure(missing, std::string("/dev/kvm: ") + std::strerror(errno) +
                                   (errno == EACCES ? "; sudo usermod -aG kvm \"$USER\", then log in again"
                                                    : "; sudo modprobe -a kvm_intel kvm_amd, where the CPU has it; "
                                                      "elsewhere tools/run-guest --on nested-kvm --vmm FILE"));
    if (ioctl(kvm.fd(), KVM_CHECK_EXTENSION, KVM_CAP_IMMEDIATE_EXIT) <= 0)
        throw failure(missing, "this KVM has no immediate_exit; Linux 4.12 has");
    return kvm;
}

enum class wish { none, save, end };

/// What outlives a copy of the machine: the other end of its ports, and the wish to end or to save.
class outside : public surroundings {
public:
    explicit outside(std::string save_at) : save_at_(std::move(save_at)) {}

    bool on_port(kvm_run& exit, uint8_t* data) override {
        std::scoped_lock const lock(mutex_);
        uint16_t const port = exit.io.port;
        uint32_t const step = exit.io.size, size = exit.io.count * step;
        if (exit.io.direction == KVM_EXIT_IO_IN) std::memset(data, port == line_status ? 0x60 : 0xff, size);
        for (uint32_t i = 0; exit.io.direction == KVM_EXIT_IO_OUT && i < size && !end_; i += step) {
            uint32_t value = 0;
            std::memcpy(&value, data + i, step);  // 1, 2 or 4
            if (port == exit_port) end({static_cast<int>(std::min(value, 63u)), ""});
            if (port == line_control) divisor_ = (data[i] & 0x80) != 0;
            if (port == serial && !divisor_) transmit(static_cast<char>(data[i]));
        }
        return !end_;
    }
    void on_failure(failure const& why) override {
        std::scoped_lock const lock(mutex_);
        end(why);
    }

    /// How it ended, with all output written; nothing if it did not. \pre no vCPU runs
    std::optional<failure> const& ended(bool by_signal) {
        if (end_ || by_signal) flush();
        return end_;
    }
    /// What is to be done. \post a wish to save is done with
    wish next() {
        std::scoped_lock const lock(mutex_);
        bool const save = std::exchange(save_, false);
        return end_ ? wish::end : save ? wish::save : wish::none;
    }

private:
    static constexpr uint16_t serial = 0x3f8, line_control = 0x3fb, line_status = 0x3fd, exit_port = 0xf4;

    void end(failure const& why) {
        if (!end_) end_ = why;
        (void)kill(getpid(), SIGUSR2);
    }
    void transmit(char c) {
        line_ += c;
        if (!save_at_.empty() && line_.ends_with(save_at_)) {
            save_ = true;
            (void)kill(getpid(), SIGUSR2);
        }
        if (c == '\n' || line_.size() == 4096) flush();
    }
    void flush() {
        bool const unread =
            std::fwrite(line_.data(), 1, line_.size(), stdout) < line_.size() || std::fflush(stdout) != 0;
        line_.clear();
        if (unread) end({by_signal + SIGPIPE, ""});
    }

    std::mutex mutex_;
    std::string line_, save_at_;
    bool divisor_ = false, save_ = false;
    std::optional<failure> end_;
};

int run(options const& o) {
    // A vCPU's thread is to be interrupted by its kick only: all other signals wait for the main thread's sigwait().
    sigset_t signals;
    sigemptyset(&signals);
    for (int s : {SIGHUP, SIGINT, SIGTERM, SIGUSR2}) sigaddset(&signals, s);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    struct sigaction nothing {};
    nothing.sa_handler = [](int) {};
    nothing.sa_flags = SA_RESTART;  // a kick does not break off a write of the output; KVM_RUN is never restarted
    sigaction(kick_signal, &nothing, nullptr);
    (void)std::signal(SIGPIPE, SIG_IGN);

    guest_memory memory(size_t{o.memory} << 20);
    boot_entry const entry = load_guest(memory, o.guest, o.append, o.vcpus);
    file const kvm = open_kvm();
    cpu_model const model(kvm, o.vcpus);
    outside world(o.save_at);
    auto vm = std::make_unique<machine>(kvm, model, o.vcpus, std::move(memory));
    vm->first().start_at(entry);
    for (;;) {
        vm->start(world);
        int signal = 0;
        auto wanted = wish::none;
        while (wanted == wish::none) {
            sigwait(&signals, &signal);
            wanted = signal == SIGUSR2 ? world.next() : wish::end;
        }
        // So that a save finds the guest in the middle of what comes after the text.
        if (wanted == wish::save) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        if (signal != SIGUSR2)  // the end does not wait long for somebody to read the output
            std::thread([signal] {
                std::this_thread::sleep_for(std::chrono::seconds(1));
                std::_Exit(by_signal + signal);
            }).detach();
        vm->stop();
        auto const& end = world.ended(signal != SIGUSR2);
        if (signal != SIGUSR2) return by_signal + signal;
        if (end && end->what()[0] != 0) throw *end;
        if (end) return end->code;
        vm = std::make_unique<machine>(kvm, model, vm->save());
        std::fprintf(stderr, "kvm-vmm: saved the machine; it goes on in a copy\n");
    }
}

}  // namespace

int main(int count, char** arguments) try {
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
