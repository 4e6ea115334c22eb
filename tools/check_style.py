#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""House rules that no compiler knows: shape of files, header comments, lengths, words that must not appear.

Layout is clang-format's business (make format); this one looks at what clang-format does not.
usage: tools/check_style.py [root]
"""
import os
import re
import subprocess
import sys

ROOT = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MAX_LINES = 600
MAX_ENTRIES = 40  # of a folder, files and folders
MANY_ENTRIES = {"kernels/variants"}  # a file a kernel
LONG = {"include/attn.h"}  # the whole API on one page
CODE = (".c", ".h", ".cu", ".cuh", ".cc", ".def")
SCRIPT = (".sh", ".py", ".cmake")
TEXT = CODE + SCRIPT + (".md", ".scd", ".txt", ".json", ".in", ".map", ".tsv", ".yml", ".toml")
NAMED = {"Makefile", "run", "LICENSE", ".clang-format", ".clang-tidy", ".gitignore"}
GENERATED = ("build/", "build-", ".git/", ".venv/", ".cache/", "tests/fuzz/corpus/")

# Words that tell of a machine, a draft or an accident. This file spells them and is not read.
FORBIDDEN = [
    (re.compile(r"/(?:home|root|work|Users)/[A-Za-z0-9_.-]+"), "a path of some machine"),
    (re.compile(r"/tmp/(?!\$|[A-Za-z_]*X{3,}|attn)[A-Za-z0-9_.-]+"), "a path of some machine"),
    (re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b"), "a marker of unfinished work"),
    (re.compile(r"\b(?:issue|pull request|PR) #?\d+\b", re.I), "a ticket number"),
    (re.compile(r"^(?:<{7}|>{7}) "), "a merge conflict"),
    (re.compile(r"\bnot (?:yet )?implemented\b", re.I), "unfinished work"),
]
# Not in tests, where a stand-in driver is an honest tool.
SHIPPED = [(re.compile(r"\bstub\b", re.I), "unfinished work")]
# Calls that shipped library code must not make, and the one file that may.
BANNED = [
    (r"(?:secure_)?getenv", {"src/base/env.c"}, "the environment is read in src/base/env.c only"),
    (r"malloc|calloc|realloc|aligned_alloc|posix_memalign|strdup|strndup|free", {"src/base/mem.c"},
     "memory goes through struct attn_mem"),
    (r"printf|puts|putchar|perror|fputs|vprintf|vfprintf|fprintf|psignal", {"src/base/log.c", "src/core/tune.c",
                                                                            "src/core/tune_file.c", "src/api/trace.c"},
     "the library does not print"),
    (r"abort|exit|_exit|_Exit|assert|quick_exit", set(), "the library does not stop the program"),
    (r"alloca|gets|strcpy|strcat|sprintf|vsprintf|strtok|setlocale|system|popen|signal", set(), "not in this house"),
]


def list_files():
    """Tracked and new files that git does not ignore; without git, everything outside build folders."""
    try:
        out = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                             capture_output=True, check=True).stdout.decode()
        files = [f for f in out.split("\0") if f]
    except (OSError, subprocess.CalledProcessError):
        files = [os.path.relpath(os.path.join(d, n), ROOT) for d, _, names in os.walk(ROOT) for n in names]
    return sorted(f for f in set(files) if not f.startswith(GENERATED) and os.path.isfile(os.path.join(ROOT, f)))


def without_comments(text):
    """C text with comments and strings blanked out, line numbers kept."""
    def blank(m):
        s = m.group(0)
        return re.sub(r"[^\n]", " ", s) if s.startswith("/") else '""' + "\n" * s.count("\n")
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', blank, text, flags=re.S)


def check_header(path, lines, say):
    """SPDX and the comment that says what the file is."""
    ext = os.path.splitext(path)[1]
    if ext in CODE:
        if not lines or not lines[0].startswith("/* SPDX-License-Identifier: MIT"):
            say(1, "first line is not `/* SPDX-License-Identifier: MIT`")
            return
        said = []
        for line in lines[1:]:
            said.append(line.strip(" */"))
            if "*/" in line:
                break
        if lines[0].rstrip().endswith("*/") or not any(len(s) > 15 for s in said):
            say(2, "the first comment does not say what the file is")
    elif ext in SCRIPT or os.path.basename(path) in ("CMakeLists.txt", "Makefile", "run"):
        head = lines[1:] if lines and lines[0].startswith("#!") else lines
        if not head or "SPDX-License-Identifier: MIT" not in head[0]:
            say(1, "no SPDX line at the top")
        elif len(head) < 2 or len(head[1].strip(' #"')) < 15:
            say(2, "the first comment does not say what the file is")


def main():
    faults = []
    files = list_files()
    for path in files:
        base, ext = os.path.basename(path), os.path.splitext(path)[1]
        if ext not in TEXT and base not in NAMED:
            continue

        def say(line, what):
            faults.append(f"{path}:{line}: {what}")

        with open(os.path.join(ROOT, path), "rb") as f:
            raw = f.read()
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            say(1, "not UTF-8")
            continue
        lines = text.split("\n")
        if text and not text.endswith("\n"):
            say(len(lines), "no newline at the end")
        if text.endswith("\n\n"):
            say(len(lines) - 1, "blank line at the end")
        tabs_ok = base == "Makefile" or ext in (".tsv", ".scd") or path.startswith("tests/cli/")
        for n, line in enumerate(lines, 1):
            if line != line.rstrip() and not (ext == ".md" and line.endswith("  ")):
                say(n, "blank at the end of the line")
            if "\t" in line and not tabs_ok:
                say(n, "tab")
            if "\r" in line:
                say(n, "carriage return")
            if ext in CODE and ext != ".def" and len(line) > 120 and path not in LONG and '"' not in line and "//" not in line:
                say(n, f"{len(line)} columns")
            if path != "tools/check_style.py":
                for pattern, what in FORBIDDEN + ([] if path.startswith("tests/") else SHIPPED):
                    if pattern.search(line):
                        say(n, f"{what}: {pattern.search(line).group(0).strip()}")
        n_lines = len(lines) - 1
        if ext in CODE + SCRIPT and n_lines > MAX_LINES and path not in LONG:
            say(n_lines, f"{n_lines} lines, at most {MAX_LINES}")
        check_header(path, lines, say)
        if path.startswith("src/") and ext in CODE:
            code = without_comments(text).split("\n")
            for calls, where, why in BANNED:
                if path in where:
                    continue
                # a member named free is fine: not after '.' or '>', and only where it is called
                pattern = re.compile(r"(?<![\w.>])(" + calls + r")\s*\(")
                for n, line in enumerate(code, 1):
                    m = pattern.search(line)
                    if m and not re.search(r"\(\*\s*$", line[:m.start()]):
                        say(n, f"{m.group(1)}(): {why}")
        if ext == ".h" and not base.endswith("_tpl.h") and path.startswith(("src/", "cli/", "include/", "tests/", "bench/")):
            guard = re.search(r"^#ifndef (\w+)\n#define (\w+)\n", text, re.M)
            if not (guard and guard.group(1) == guard.group(2)) and "#pragma once" not in text:
                say(1, "no include guard")
    entries = {}
    for path in files:
        parts = path.split("/")
        for i in range(1, len(parts)):
            entries.setdefault("/".join(parts[:i]), set()).add(parts[i])
    faults += [f"{folder}: {len(names)} entries, at most {MAX_ENTRIES}" for folder, names in sorted(entries.items())
               if len(names) > MAX_ENTRIES and folder not in MANY_ENTRIES]
    for fault in faults:
        print(fault)
    print(f"style: {len(files)} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
