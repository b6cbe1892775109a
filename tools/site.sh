#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the pages into a site with search: build/site/html/index.html. tools/site.sh --help explains the arguments.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat << 'END'
tools/site.sh [--kept FILE]   builds docs/, README and the API reference into build/site/html; every warning is an error

  --kept FILE   the page of the demo, kept.html in the repository's root if it is not given; the site shows it if it is there

mkdocs and its theme go into an environment in ${XDG_CACHE_HOME:-~/.cache}/kvpolicy, once. The site needs no network: open
build/site/html/index.html, or serve that folder.
END
}

kept=
[[ -f kept.html ]] && kept=$PWD/kept.html
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --kept)
      if [[ ! -f ${2:-} ]]; then
        echo "tools/site.sh: --kept = ${2:-}, but it names a file" >&2
        exit 2
      fi
      kept=$2
      shift 2 ;;
    *)
      echo "tools/site.sh: argument = $1, but there are --kept FILE and --help" >&2
      exit 2 ;;
  esac
done

for program in doxygen python3; do
  command -v "$program" > /dev/null || tools/setup.sh --ci
done
venv=${XDG_CACHE_HOME:-$HOME/.cache}/kvpolicy/site-$(cksum < tools/site/requirements.txt | cut -d' ' -f1)
if [[ ! -f $venv/complete ]]; then
  echo "installing mkdocs into $venv"
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r tools/site/requirements.txt
  touch "$venv/complete"
fi

pages=build/site/pages
rm -rf build/site/doxygen
mkdir -p build/site/doxygen
{ cat docs/Doxyfile; printf '%s\n' GENERATE_HTML=NO GENERATE_XML=YES XML_PROGRAMLISTING=NO WARN_AS_ERROR=NO; } |
  KVPOLICY_DOCS_OUT=build/site/doxygen doxygen - > build/site/doxygen/log 2>&1
python3 tools/site/stage.py "$pages" ${kept:+--kept "$kept"}
python3 tools/site/reference.py build/site/doxygen/xml "$pages/reference"
mv "$pages/reference/nav.yml" build/site/nav.yml
sed -e '/# reference.py names the groups/{r build/site/nav.yml' -e 'd}' tools/site/mkdocs.yml > build/site/mkdocs.yml
cp tools/site/site.css tools/site/iframe-worker.js "$pages"
# mkdocs counts its warnings where it prints them, so it is not quiet. The theme's advertisement is no warning.
NO_MKDOCS_2_WARNING=1 "$venv/bin/python" -m mkdocs build --strict --clean --config-file build/site/mkdocs.yml
echo "the site is $PWD/build/site/html/index.html"
