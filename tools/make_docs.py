#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Write the parts of the documentation that the command knows best: docs/env.md and the table in docs/operators.md.

    python3 tools/make_docs.py build/release/attn            write them
    python3 tools/make_docs.py build/release/attn --check    fail if they are out of date (part of make lint)

The table of kernels lists what this machine's build has, so kernels for GPUs appear only in builds that carry them.
"""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- made by `attn list --markdown` -->", "<!-- /made -->"


def output(attn, *words):
    return subprocess.run([attn, *words], check=True, capture_output=True, text=True).stdout


def env_page(attn):
    rows = json.loads(output(attn, "env", "--json"))
    lines = [
        "# Environment variables",
        "",
        "Read once, when a context is made. Options of `attn_ctx_options` and `attn_plan_options` come first; these fill in what they",
        "leave open. `attn env` prints this table with the current values; it is `attn_env_table` in src/base/env.c.",
        "",
        "- **A value that the variable cannot have** refuses the context (`ATTN_E_ARGUMENT`, `ATTN_E_ENUM`; `ATTN_E_IO` for a file that cannot",
        "  be opened) and the message names the variable. bool: 1, true, yes, on, 0, false, no, off. int: a number, 0 or more. A variable",
        "  that an option overrides is not judged. Set but empty is unset.",
        "- **An unknown name that starts with `ATTN_`** may be another program's, so it is not refused: each gives one line at level warn, area",
        "  env, in every context, with the known name that differs by two letters or less; but for `ATTN_CUDA_CODE`, which the build reads.",
        "  The `attn` command shows such lines by default.",
        "- **A preference that cannot be met** (`ATTN_KERNEL`, `ATTN_BACKEND`) gives a line at level warn, area plan.",
        "",
        "| variable | type | what it does |",
        "|---|---|---|",
    ]
    lines += [f"| `{r['name']}` | {r['type']} | {r['help'].replace('|', chr(92) + '|')} |" for r in rows]
    return "\n".join(lines) + "\n"


def operators_page(attn, text):
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    return head + BEGIN + "\n" + output(attn, "list", "--markdown").rstrip() + "\n" + END + tail


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    attn, check = sys.argv[1], "--check" in sys.argv[2:]
    pages = {ROOT / "docs/env.md": env_page(attn), ROOT / "docs/operators.md": operators_page(attn, (ROOT / "docs/operators.md").read_text())}
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
    if check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run python3 tools/make_docs.py build/release/attn")
        sys.exit(bool(stale))
    for path in stale:
        path.write_text(pages[path])
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
