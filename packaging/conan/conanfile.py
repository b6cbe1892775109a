# SPDX-License-Identifier: Apache-2.0
"""Packages the tree that this file stands in. Conan 2: conan create packaging/conan -s compiler.cppstd=20"""

import re
from pathlib import Path

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy, load
from conan.tools.layout import basic_layout

required_conan_version = ">=2.0"


class KvpolicyConan(ConanFile):
    name = "kvpolicy"
    description = "KV-cache eviction, selection and admission policies for inference engines"
    license = "Apache-2.0"
    topics = ("kv-cache", "llm", "inference", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    no_copy_source = True

    def set_version(self):
        text = load(self, Path(self.recipe_folder, "../../include/kvpolicy/version.hpp"))
        self.version = re.search(r'version\[\] = "([0-9.]+)"', text).group(1)

    def export_sources(self):
        tree = Path(self.recipe_folder, "../..").resolve()
        for pattern in ("include/*.hpp", "include/*.cuh", "LICENSE"):
            copy(self, pattern, tree, self.export_sources_folder)

    def layout(self):
        basic_layout(self)

    def package_id(self):
        self.info.clear()

    def validate(self):
        check_min_cppstd(self, 20)

    def package(self):
        copy(self, "*", Path(self.source_folder, "include"), Path(self.package_folder, "include"))
        copy(self, "LICENSE", self.source_folder, Path(self.package_folder, "licenses"))

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "kvpolicy")
        self.cpp_info.set_property("cmake_target_name", "kvpolicy::kvpolicy")
        self.cpp_info.set_property("cmake_config_version_compat", "SameMinorVersion")
        self.cpp_info.set_property("pkg_config_name", "kvpolicy")
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        if self.settings.os in ("Linux", "FreeBSD"):
            self.cpp_info.system_libs = ["pthread"]
