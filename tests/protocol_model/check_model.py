#!/usr/bin/env python3
"""Explores every state of mailbox.pml with spin: the protocol holds, each mutation of it does not."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MODEL = pathlib.Path(__file__).with_name("mailbox.pml")
# What each mutation breaks, as the checker says it.
MUTATIONS = {
    "NO_FENCE": r"assertion violated|invalid end state",
    "NO_CLEAR": r"assertion violated",
    "NO_SECOND_FENCE": r"invalid end state",
    "END_STEP": r"assertion violated",
    "ONE_SITE": r"assertion violated|invalid end state",
    "EARLY_PUSH": r"assertion violated|invalid end state",
}
SKIPPED = 77


def explore(mutation):
    """The verifier's report for the model with `mutation` (or none)."""
    with tempfile.TemporaryDirectory() as folder:
        define = [f"-D{mutation}"] if mutation else []
        subprocess.run(["spin", *define, "-a", str(MODEL)], cwd=folder, check=True,
                       capture_output=True)
        subprocess.run(["cc", "-O0", "-w", "-DSAFETY", "-DMEMLIM=512", "-o", "pan", "pan.c"],
                       cwd=folder, check=True, capture_output=True)
        report = subprocess.run(["./pan", "-m100000"], cwd=folder, check=False,
                                capture_output=True, text=True)
        return report.stdout + report.stderr


def verdict(report):
    """(errors, states, whether the search was complete)."""
    errors = int(re.search(r"errors: (\d+)", report).group(1))
    states = int(re.search(r"(\d+) states, stored", report).group(1))
    cut = re.search(r"max search depth too small|search not completed|out of memory", report, re.I)
    return errors, states, cut is None


def main():
    if shutil.which("spin") is None or shutil.which("cc") is None:
        print("spin or cc is not installed: skipped")
        return SKIPPED
    failed = False
    report = explore(None)
    errors, states, complete = verdict(report)
    print(f"protocol: {states} states, {errors} errors")
    if errors != 0 or not complete or states < 1000:
        print(report)
        failed = True
    for mutation, expected in MUTATIONS.items():
        report = explore(mutation)
        errors, _, _ = verdict(report)
        found = re.search(expected, report)
        print(f"{mutation}: {found.group(0) if found else 'no error found'}")
        if errors == 0 or found is None:
            print(report)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
