// SPDX-License-Identifier: MIT
#include "step.hpp"

#include <elf.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "decode.hpp"

namespace exact {
namespace {

using std::runtime_error;

// Far more than any case takes: one that gets here waits for somebody who does not exist.
constexpr uint64_t most_steps = 100000;
// From the breakpoint to the operation's entry.
constexpr uint64_t most_steps_before = 100;
constexpr int exit_no_ptrace = 77;

// Empty where the counting machine counts the same by a better name.
constexpr const char* names_of_kinds[] = {"",      "LOCK",  "MFENCE", "LFENCE", "SFENCE", "PAUSE",
                                          "CPUID", "RDTSC", "",       "",       "",       ""};

/// A forked child, killed and reaped in the end. It dies with this process too.
class child {
public:
    template <class Run>
    explicit child(Run&& run) : parent_(getpid()), pid_(fork()) {
        if (pid_ < 0) throw runtime_error(std::string("cannot fork: ") + std::strerror(errno));
        if (pid_ > 0) return;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent_) _exit(1);
        run();
        _exit(0);
    }
    ~child() {
        if (!running_) return;
        kill(pid_, SIGKILL);
        wait();
    }
    child(child const&) = delete;
    child& operator=(child const&) = delete;

    int wait() {
        int status = 0;
        while (waitpid(pid_, &status, 0) < 0)
            if (errno != EINTR) throw runtime_error(std::string("waitpid: ") + std::strerror(errno));
        running_ = WIFSTOPPED(status);
        return status;
    }
    pid_t pid() const { return pid_; }

private:
    pid_t parent_;
    pid_t pid_;
    bool running_ = true;
};

std::string how_it_ended(int status) {
    if (WIFEXITED(status)) return "ended with exit code " + std::to_string(WEXITSTATUS(status));
    return std::string("died: ") + strsignal(WIFSTOPPED(status) ? WSTOPSIG(status) : WTERMSIG(status));
}

/// A traced child that stands before an instruction.
class stepper {
public:
    explicit stepper(test_case const& c)
        : child_([&] {
              if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(exit_no_ptrace);
              c.run_plain(c.plain_operation);
          }) {
        next_stop();
    }

    uintptr_t at() const { return regs_.rip; }
    uintptr_t stack() const { return regs_.rsp; }
    uint64_t read(uintptr_t address) const {
        errno = 0;
        long const word = ptrace(PTRACE_PEEKDATA, child_.pid(), reinterpret_cast<void*>(address), nullptr);
        if (errno != 0) throw runtime_error(std::string("cannot read its memory: ") + std::strerror(errno));
        return static_cast<uint64_t>(word);
    }

    /// The code is that of this process too.
    instruction next() const { return decode(reinterpret_cast<uint8_t const*>(regs_.rip)); }

    void step() {
        instruction const now = next();
        if (now.length == 0) {
            request(PTRACE_SINGLESTEP, nullptr);
            next_stop();
            return;
        }
        carry_out(now.what);
        regs_.rip += now.length;
        request(PTRACE_SETREGS, &regs_);
    }

private:
    void request(__ptrace_request what, void* data) {
        if (ptrace(what, child_.pid(), nullptr, data) != 0)
            throw runtime_error(std::string("ptrace: ") + std::strerror(errno));
    }

    void next_stop() {
        int const status = child_.wait();
        if (WIFEXITED(status) && WEXITSTATUS(status) == exit_no_ptrace) throw not_permitted{};
        if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP)
            throw runtime_error(how_it_ended(status) + ", before its operation had returned");
        request(PTRACE_GETREGS, &regs_);
    }

    void answer(uint64_t value) {
        regs_.rax = value & 0xffffffff;
        regs_.rdx = value >> 32;
    }

    void carry_out(kind what) {
        switch (what) {
            case kind::cpuid: {
                abi::cpuid_regs const r =
                    planned_cpuid(static_cast<uint32_t>(regs_.rax), static_cast<uint32_t>(regs_.rcx));
                regs_.rax = r.eax, regs_.rbx = r.ebx, regs_.rcx = r.ecx, regs_.rdx = r.edx;
                break;
            }
            case kind::rdtsc: answer(read(reinterpret_cast<uintptr_t>(&host.tsc))); break;
            case kind::rdmsr: answer(read(reinterpret_cast<uintptr_t>(&host.msr))); break;
            case kind::hypercall: regs_.rax = read(reinterpret_cast<uintptr_t>(&host.hypercall)); break;
            default: break;
        }
    }

    child child_;
    user_regs_struct regs_{};
};

}  // namespace

symbols::symbols() {
    std::ifstream file("/proc/self/exe", std::ios::binary);
    std::string const image{std::istreambuf_iterator<char>(file), {}};
    auto const at = [&]<class T>(uint64_t offset, T*) {
        if (offset + sizeof(T) > image.size()) throw runtime_error("cannot read the symbols of this program");
        T value;
        std::memcpy(&value, image.data() + offset, sizeof value);
        return value;
    };
    auto const header = at(0, static_cast<Elf64_Ehdr*>(nullptr));
    auto const section = [&](uint64_t i) {
        return at(header.e_shoff + i * header.e_shentsize, static_cast<Elf64_Shdr*>(nullptr));
    };
    for (uint64_t i = 0; i < header.e_shnum; ++i) {
        Elf64_Shdr const table = section(i);
        if (table.sh_type != SHT_SYMTAB) continue;
        uint64_t const strings = section(table.sh_link).sh_offset;
        for (uint64_t offset = 0; offset < table.sh_size; offset += sizeof(Elf64_Sym)) {
            auto const s = at(table.sh_offset + offset, static_cast<Elf64_Sym*>(nullptr));
            if (ELF64_ST_TYPE(s.st_info) == STT_FUNC && s.st_shndx != SHN_UNDEF && s.st_size != 0)
                sorted_.push_back({s.st_value, s.st_size, image.data() + strings + s.st_name});
        }
    }
    if (sorted_.empty()) throw runtime_error("this program was stripped of its symbols");
    std::sort(sorted_.begin(), sorted_.end(), [](symbol const& a, symbol const& b) {
        return std::tie(a.address, a.name) < std::tie(b.address, b.name);
    });
}

symbols::symbol const* symbols::find(uintptr_t address) const {
    auto const after = std::upper_bound(sorted_.begin(), sorted_.end(), address,
                                        [](uintptr_t a, symbol const& s) { return a < s.address; });
    if (after == sorted_.begin()) return nullptr;
    symbol const& s = *std::prev(after);
    return address < s.address + s.size ? &s : nullptr;
}

figures count_instructions(test_case const& c, symbols const& known, std::set<symbols::symbol const*>& ran) {
    auto const entry = reinterpret_cast<uintptr_t>(c.plain_operation);
    stepper s(c);
    for (uint64_t before = 0; s.at() != entry; s.step())
        if (++before > most_steps_before) throw runtime_error("does not call its operation first of all");

    uintptr_t const entry_stack = s.stack();
    uintptr_t const return_address = s.read(entry_stack);
    figures counts;
    uint64_t& steps = counts["instructions"];
    do {
        auto const* const inside = known.find(s.at());
        if (inside == nullptr) throw runtime_error("calls a function of a library: pvx may not need any");
        ran.insert(inside);
        if (char const* const name = names_of_kinds[static_cast<uint8_t>(s.next().what)]; *name != 0) ++counts[name];
        if (++steps > most_steps)
            throw runtime_error("does not end: " + std::to_string(most_steps) + " instructions, now in " +
                                inside->name);
        s.step();
    } while (s.at() != return_address || s.stack() != entry_stack + sizeof(uintptr_t));
    return counts;
}

figures count_events(test_case const& c) {
    size_t const size = sizeof(uint64_t) * event_kinds;
    if (events == nullptr) {
        void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) throw runtime_error(std::string("mmap: ") + std::strerror(errno));
        events = static_cast<uint64_t*>(memory);
    }
    int const status = child([&] { c.run_counting(c.counting_operation); }).wait();
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) throw runtime_error(how_it_ended(status));
    figures counts;
    for (uint32_t e = 0; e < event_kinds; ++e)
        if (events[e] != 0) counts[event_names[e]] = events[e];
    return counts;
}

}  // namespace exact
