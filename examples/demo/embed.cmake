# Puts report.html into the demo's programs, as the string demo::report_page of "report_page.hpp".
set(_page ${CMAKE_CURRENT_LIST_DIR}/report.html)
set(_folder ${CMAKE_CURRENT_BINARY_DIR}/demo_page)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_page})
file(READ ${_page} DEMO_REPORT_PAGE)
configure_file(${CMAKE_CURRENT_LIST_DIR}/report_page.hpp.in ${_folder}/report_page.hpp @ONLY)
target_include_directories(demo_table PRIVATE ${_folder})
