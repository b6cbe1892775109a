# SPDX-License-Identifier: Apache-2.0
# An overlay port: it packages the tree that it stands in, so there is nothing to download and no checksum to keep.
get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../../../.." ABSOLUTE)

set(VCPKG_BUILD_TYPE release) # headers only: debug and release are the same

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -DKVPOLICY_BUILD_TESTS=OFF
    -DKVPOLICY_BUILD_BENCH=OFF
    -DKVPOLICY_BUILD_EXAMPLES=OFF
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/kvpolicy)
vcpkg_fixup_pkgconfig()

file(INSTALL "${CMAKE_CURRENT_LIST_DIR}/usage" DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
