# SPDX-License-Identifier: Apache-2.0
"""Writes a file from which ctest runs each test case of a doctest program on its own.

    discover_tests.py PROGRAM FILE [--by-source | --quick]

With --by-source it runs the cases of a source file together: under a sanitizer starting the program takes longer than most cases.
With --quick the tests have the label `quick_case`, and names that differ from those of the program of all tests.

doctest's own doctest_discover_tests breaks on names that CMake reads as lists: a semicolon, a bracket without its pair.
"""

import subprocess
import sys
import xml.etree.ElementTree as xml


def literal(text):
    """A CMake argument that is taken as it stands."""
    equals = "="
    while f"]{equals}]" in text:
        equals += "="
    return f"[{equals}[{text}]{equals}]"


def filter_of(option, text):
    """A doctest filter for exactly this text; a comma would separate two filters."""
    return literal(f"--{option}={text}".replace(",", "\\,"))


# A filter that matches nothing exits with 0, so a run of no test case must fail by its summary.
NO_CASE = 'PROPERTIES FAIL_REGULAR_EXPRESSION "test cases: *0 [|]"'


def cases(program):
    command = [program, "--list-test-cases", "--reporters=xml", "--no-skip"]
    listing = subprocess.run(command, check=True, capture_output=True, text=True)
    return list(xml.fromstring(listing.stdout).iter("TestCase"))


# Under a sanitizer these take longest, so that they begin first.
SLOW = ("tinylm/session_test.cpp", "scorers/intent_kv_test.cpp", "tinylm/model_test.cpp", "layout/agreement_test.cpp")


def sources(program):
    for source in dict.fromkeys(case.get("filename") for case in cases(program)):
        shown = literal("/".join(source.split("/")[-2:]))
        yield f"add_test({shown} {literal(program)} {filter_of('source-file', source)})"
        cost = 1000 if source.endswith(SLOW) else 1
        yield f"set_tests_properties({shown} {NO_CASE} TIMEOUT 600 COST {cost})"


def tests(program, prefix="", labels=""):
    for case in cases(program):
        suite, name = case.get("testsuite") or "", case.get("name")
        shown = literal(prefix + (f"{suite}: {name}" if suite else name))
        filters = [filter_of("test-case", name)] + ([filter_of("test-suite", suite)] if suite else [])
        yield f"add_test({shown} {literal(program)} {' '.join(filters)})"
        if case.get("skipped") == "true":
            yield f"set_tests_properties({shown} PROPERTIES DISABLED TRUE)"
        yield f"set_tests_properties({shown} {NO_CASE} TIMEOUT 300{labels})"


def quick_tests(program):
    return tests(program, "quick: ", " LABELS quick_case")


def main():
    program, file, *how = sys.argv[1:]
    lines = list({"--by-source": sources, "--quick": quick_tests}[how[0]](program) if how else tests(program))
    with open(file, "w", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")


main()
