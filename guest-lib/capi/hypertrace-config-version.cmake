# Until 1.0, a new minor version may change interfaces: docs/releasing.md.

set(PACKAGE_VERSION "@version@")
if(EXISTS "${CMAKE_CURRENT_LIST_DIR}/Cargo.toml")
  # In a source tree nothing has set it.
  file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../../Cargo.toml" PACKAGE_VERSION REGEX "^version = ")
  string(REGEX REPLACE "[^0-9.]" "" PACKAGE_VERSION "${PACKAGE_VERSION}")
endif()

string(REGEX MATCH "^[0-9]+\\.[0-9]+" _hypertrace_minor "${PACKAGE_VERSION}")
if("${PACKAGE_FIND_VERSION_MAJOR}.${PACKAGE_FIND_VERSION_MINOR}" STREQUAL _hypertrace_minor
   AND NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
