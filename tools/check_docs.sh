#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs doxygen over the headers and the pages. Every warning is an error, and every public type, function, concept and
# constant of a namespace has a comment. Members are free to have none: a name may say it all.
# tools/check_docs.sh [FOLDER]     FOLDER: where the pages go, build/docs if it is not given
set -euo pipefail
cd "$(dirname "$0")/.."

export KVPOLICY_DOCS_OUT=${1:-build/docs}
mkdir -p "$KVPOLICY_DOCS_OUT"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
fail() {
  sed "s|^$PWD/||" "$log" | sort -u >&2
  echo "tools/check_docs.sh: $(sort -u "$log" | wc -l) warnings: $1" >&2
  exit 1
}

doxygen docs/Doxyfile > "$log" 2>&1 || fail 'a comment or a page is broken'

# doxygen cannot be told to look at the members of namespaces alone, so it looks at all; those of types, deduction
# guides and the hooks `print` and `names`, by which a type tells `to_string` its text, are taken out of what it says.
{ cat docs/Doxyfile; printf '%s\n' WARN_IF_UNDOCUMENTED=YES WARN_AS_ERROR=NO GENERATE_HTML=NO GENERATE_XML=YES; } |
  doxygen - 2>&1 | grep 'warning:' |
    grep -vE 'Member .* of (struct|class|union) .* is not documented|Member (.*\) -> |(print|names)\()' > "$log" || true
[[ ! -s $log ]] || fail 'a public name has no comment'

# Nothing read is nothing wrong: the words of the library must be among what doxygen found.
for name in decide observe make_plan apply; do
  grep -q "<name>$name</name>" "$KVPOLICY_DOCS_OUT/xml/namespacekvpolicy.xml" || {
    echo "tools/check_docs.sh: doxygen did not find kvpolicy::$name" >&2
    exit 1
  }
done
# The reference of the site: every public name is in one of its groups.
python3 tools/site/reference.py "$KVPOLICY_DOCS_OUT/xml" || {
  echo "tools/check_docs.sh: docs/reference.txt has to say where these names belong" >&2
  exit 1
}
echo "doxygen $(doxygen --version): no warnings, every public name has a comment; pages in $KVPOLICY_DOCS_OUT/html"
