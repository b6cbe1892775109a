#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes what a release uploads, from a commit and not from the working tree: archives, the library as one header, the text
# of the tag, and checksums. It sets no tag and uploads nothing. tools/release.sh --help explains the arguments.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat << 'END'
tools/release.sh [--from COMMIT] [--no-python] FOLDER

  FOLDER         receives kvpolicy-VERSION.tar.gz, kvpolicy-VERSION.hpp, python/kvpolicy-VERSION.tar.gz (the package of
                 Python), tag.txt, changes.md (the changelog's section), SHA256SUMS and SHA512SUMS; it is made, or empty
  --from COMMIT  the commit that is released: the tag vVERSION if it is not given
  --no-python    without the Python package, whose archive needs the module `build`

The same commit gives the same bytes, those of the Python archive excepted.
END
}
refuse() {
  echo "tools/release.sh: $1" >&2
  exit 2
}

from=
python=1
folder=
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) usage; exit 0 ;;
    --from)
      [[ $# -ge 2 ]] || refuse "--from = missing, but it names a commit"
      from=$2
      shift 2 ;;
    --no-python)
      python=0
      shift ;;
    -*) refuse "argument = $1, but there are --from COMMIT and --no-python" ;;
    *)
      [[ -z $folder ]] || refuse "argument = $1, but the folder is $folder"
      folder=$1
      shift ;;
  esac
done
[[ -n $folder ]] || refuse "FOLDER = missing, but archives are written there"
[[ ! -e $folder || (-d $folder && -z $(ls -A "$folder")) ]] || refuse "FOLDER = $folder, but it is there and not empty"
[[ -n $from ]] || from=v$(sed -nE 's/.*version\[\] = "(.*)";/\1/p' include/kvpolicy/version.hpp)
commit=$(git rev-parse --verify --quiet "$from^{commit}") || refuse "--from = $from, but there is no such commit or tag"
if [[ $python -eq 1 ]] && ! (cd / && python3 -m build --version > /dev/null 2>&1); then
  refuse "python3 has no module build: pip install build, or --no-python"
fi

version=$(git show "$commit:include/kvpolicy/version.hpp" | sed -nE 's/.*version\[\] = "(.*)";/\1/p')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git show "$commit:CHANGELOG.md" | awk -v head="## $version," 'index($0, head) == 1 {on = 1; print; next} /^## / {on = 0} on' > "$work/changes.md"
heading=$(head -n 1 "$work/changes.md")
[[ $heading =~ ^"## $version, "[0-9]{4}-[0-9]{2}-[0-9]{2}$ ]] ||
  refuse "CHANGELOG.md of $from has \"${heading:-no section of $version}\", but a release has its day: ## $version, YYYY-MM-DD"
# The tag's text is what stands between the section's heading and its first list.
text=$(tail -n +2 "$work/changes.md" | sed '/^### /,$d' | sed '/./,$!d')
printf 'kvpolicy %s\n\n%s\n' "$version" "$text" > "$work/tag.txt"

name=kvpolicy-$version
git archive --prefix="$name/" "$commit" | gzip -9 --no-name > "$work/$name.tar.gz"
mkdir "$work/tree"
tar -xzf "$work/$name.tar.gz" -C "$work/tree"
"$work/tree/$name/tools/single_header.py" "$work/$name.hpp"
if [[ $python -eq 1 ]]; then
  mkdir "$work/python"
  # Elsewhere, because a folder build/ of the tree would be taken for the module.
  (cd "$work" && python3 -m build --sdist --outdir "$work/python" "$work/tree/$name/python" > log 2>&1) ||
    { cat "$work/log" >&2; exit 1; }
fi

files=(changes.md "$name.hpp" "$name.tar.gz" tag.txt)
[[ $python -eq 0 ]] || files+=("python/$name.tar.gz")
(cd "$work" && sha256sum "${files[@]}" > SHA256SUMS && sha512sum "$name.tar.gz" > SHA512SUMS)
mkdir -p "$folder"
for file in "${files[@]}" SHA256SUMS SHA512SUMS; do
  mkdir -p "$(dirname "$folder/$file")"
  cp "$work/$file" "$folder/$file"
done
echo "kvpolicy $version of ${commit:0:12} is in $folder:"
cat "$folder/SHA256SUMS"
