# SPDX-License-Identifier: MIT
"""Runs programs so that they are seen to go on, and so that nothing of them outlives us."""

import contextlib
import fcntl
import glob
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time

from measure.errors import Failure, Interrupted, Missing

SHOW_AFTER = 2  # seconds
SHOW_EVERY = 10
END_WITHIN = 10  # run-guest takes two seconds to end a machine


def catch_signals():
    """Has SIGINT, SIGTERM and SIGHUP unwind the stack, once: the second one must not interrupt the cleaning up."""

    def interrupt(number, _):
        for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)


def last_line(path):
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 400))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


class Runner:
    """The source tree, the build folder, and the commands that were run for the section in progress."""

    def __init__(self, root, build):
        self.root = root
        self.build = build
        self.start = time.monotonic()
        self.commands = []
        self.code = 0  # of the last command

    def say(self, text):
        print(f"measure: {time.monotonic() - self.start:6.1f} s  {text}", file=sys.stderr, flush=True)

    def file(self, *names):
        """A path in the build folder, as commands are shown: from the root of the sources."""
        return os.path.relpath(os.path.join(self.build, *names), self.root)

    def log(self, program):
        """Standard error of its last run."""
        with open(os.path.join(self.build, f"{program}.log"), encoding="utf-8", errors="replace") as file:
            return file.read()

    def run(self, command, what, codes=(0,)):
        """Runs it in the root; returns standard output. Another exit code than these is a Failure. Standard error, and
        the progress in it, goes to a log file."""
        name = os.path.basename(command[0])
        output, log = (os.path.join(self.build, f"{name}.{end}") for end in ("out", "log"))
        if what:
            self.say(what)
        with open(output, "wb") as out, open(log, "wb") as err:
            try:
                child = subprocess.Popen(
                    command, cwd=self.root, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
                )
            except OSError as error:
                raise Missing(f"cannot run {command[0]}: {error.strerror}") from error
            try:
                self._wait(child, log)
            except BaseException:
                self._end(child)
                raise
        self.code = child.returncode
        if self.code not in codes:
            shown = last_line(log) or last_line(output)
            raise Failure(f"{name} ended with {self.code}: {shown} (see {self.file(os.path.basename(log))})")
        with open(output, encoding="utf-8", errors="replace") as file:
            return file.read()

    def measure(self, command, what, codes=(0,)):
        """The same for a command that figures come from: it is kept in the results."""
        self.commands.append(shlex.join(command))
        return self.run(command, what, codes)

    def _wait(self, child, log):
        show_at = time.monotonic() + SHOW_AFTER
        while True:
            try:
                child.wait(timeout=max(0.0, show_at - time.monotonic()))
                return
            except subprocess.TimeoutExpired:
                self.say(f"    {last_line(log) or '...'}")
                show_at += SHOW_EVERY

    @staticmethod
    def _end(child):
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(child.pid, number)
                child.wait(timeout=END_WITHIN)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


@contextlib.contextmanager
def only_one(runner):
    """Two at once would measure each other."""
    os.makedirs(runner.build, exist_ok=True)
    with open(os.path.join(runner.build, "lock"), "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure(f"another tools/measure is running in {runner.file()}") from None
        yield


# --- building ---------------------------------------------------------------------------------------------------------


def configure(runner):
    command = [
        "cmake",
        "-S",
        ".",
        "-B",
        runner.file(),
        "-G",
        "Ninja",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DPVX_BENCH=ON",
        "-DPVX_TESTS=OFF",
    ]
    command.append(f"-DCMAKE_CXX_COMPILER={os.environ.get('CXX', 'c++')}")
    runner.run(command, "configuring a Release build")


def build_target(runner, target):
    """Builds one program and returns its path."""
    known = runner.run(["ninja", "-C", runner.file(), "-t", "targets", "all"], "")
    if f"\n{target}: phony" not in "\n" + known:
        raise Missing(f"this source tree builds no {target}")
    runner.run(
        ["cmake", "--build", runner.file(), "--target", target, "-j", str(len(os.sched_getaffinity(0)))],
        f"building {target}",
    )
    for folder, _, files in os.walk(runner.build):
        for name in (target, f"{target}.elf"):
            if name in files:
                return runner.file(os.path.relpath(os.path.join(folder, name), runner.build))
    raise Failure(f"the build made no program {target}")


# --- the machine ------------------------------------------------------------------------------------------------------


def output_of(command):
    """Standard output of a command that only tells something; empty if it cannot."""
    try:
        environment = {**os.environ, "LC_ALL": "C"}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


class Neighbours:
    """How much of the machine others use, its hypervisor's other guests included, from now on."""

    def __init__(self):
        self.start = self._used()

    @staticmethod
    def _used():
        """Seconds: gone by, of CPU time of everybody, of our own and that of children that have ended."""
        with open("/proc/stat", encoding="utf-8") as file:
            user, nice, system, _, _, irq, softirq, steal = map(int, file.readline().split()[1:9])
        everybody = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return time.monotonic(), everybody, sum(usage.ru_utime + usage.ru_stime for usage in own)

    def share(self):
        passed, everybody, own = (now - then for now, then in zip(self._used(), self.start))
        return max(0.0, (everybody - own) / (passed * os.cpu_count()))


def lscpu():
    return {
        key.strip(): value.strip()
        for key, _, value in (line.partition(":") for line in output_of(["lscpu"]).splitlines())
    }


def cmake_value(runner, file, pattern):
    """What CMake found out at configure time; empty if the file or the value is not there."""
    for path in glob.glob(os.path.join(runner.build, file)):
        with open(path, encoding="utf-8") as text:
            found = re.search(pattern, text.read(), re.MULTILINE)
            if found:
                return found[1].strip()
    return ""


def fingerprint(runner):
    """What figures depend on beside the code. "kernel" and "qemu" are told, but do not keep two runs apart."""

    def compiler(what):
        return cmake_value(runner, "CMakeFiles/*/CMakeCXXCompiler.cmake", rf'^set\(CMAKE_CXX_COMPILER_{what} "([^"]*)"')

    def flags(what):
        return cmake_value(runner, "CMakeCache.txt", rf"^CMAKE_CXX_{what}:\w+=(.*)$")

    cpu = lscpu()
    return {
        "cpu": cpu.get("Model name", "unknown"),
        "cpus": str(os.cpu_count()),
        "hypervisor": cpu.get("Hypervisor vendor", "none"),
        "kernel": os.uname().release,
        "qemu": (output_of(["qemu-system-x86_64", "--version"]).splitlines() or [""])[0],
        "compiler": f"{compiler('ID')} {compiler('VERSION')}".strip(),
        "flags": f"{flags('FLAGS')} {flags('FLAGS_RELEASE')}".strip(),
    }


def revision(root):
    """The commit, with a + if the sources differ from it."""
    name = output_of(["git", "-C", root, "rev-parse", "--short=12", "HEAD"]).strip()
    if not name:
        return "unknown"
    return name + ("+" if output_of(["git", "-C", root, "status", "--porcelain"]) else "")
