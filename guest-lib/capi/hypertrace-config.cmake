# find_package(hypertrace): hypertrace::hypertrace is the shared library, hypertrace::static the static one.
#
# Beside an installed library it finds that one. In a source tree (-Dhypertrace_DIR=TREE/guest-lib/capi, or
# add_subdirectory of that folder) cargo builds it together with the project.

if(TARGET hypertrace::hypertrace)
  return()
endif()

if(EXISTS "${CMAKE_CURRENT_LIST_DIR}/Cargo.toml")
  get_filename_component(_hypertrace_root "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
  set(HYPERTRACE_TARGET_DIR "${_hypertrace_root}/target" CACHE PATH "Where cargo builds libhypertrace")
  set(_hypertrace_include "${_hypertrace_root}/guest-lib/include")
  set(_hypertrace_lib "${HYPERTRACE_TARGET_DIR}/release")
  find_program(HYPERTRACE_CARGO cargo HINTS "$ENV{HOME}/.cargo/bin")
  if(NOT HYPERTRACE_CARGO)
    set(hypertrace_FOUND FALSE)
    set(hypertrace_NOT_FOUND_MESSAGE "cargo is not on PATH: it builds libhypertrace")
    return()
  endif()
  add_custom_target(hypertrace_cargo
    COMMAND "${HYPERTRACE_CARGO}" build --quiet --locked --release --package hypertrace-c
            --target-dir "${HYPERTRACE_TARGET_DIR}"
    WORKING_DIRECTORY "${_hypertrace_root}"
    BYPRODUCTS "${_hypertrace_lib}/libhypertrace.so" "${_hypertrace_lib}/libhypertrace.a"
    VERBATIM)
else()
  get_filename_component(_hypertrace_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
  set(_hypertrace_include "${_hypertrace_prefix}/include")
  set(_hypertrace_lib "${_hypertrace_prefix}/lib")
endif()

add_library(hypertrace::hypertrace SHARED IMPORTED GLOBAL)
set_target_properties(hypertrace::hypertrace PROPERTIES
  IMPORTED_LOCATION "${_hypertrace_lib}/libhypertrace.so"
  IMPORTED_SONAME libhypertrace.so
  INTERFACE_INCLUDE_DIRECTORIES "${_hypertrace_include}")

add_library(hypertrace::static STATIC IMPORTED GLOBAL)
set_target_properties(hypertrace::static PROPERTIES
  IMPORTED_LOCATION "${_hypertrace_lib}/libhypertrace.a"
  INTERFACE_INCLUDE_DIRECTORIES "${_hypertrace_include}"
  INTERFACE_LINK_LIBRARIES "pthread;${CMAKE_DL_LIBS};m")

if(TARGET hypertrace_cargo)
  add_dependencies(hypertrace::hypertrace hypertrace_cargo)
  add_dependencies(hypertrace::static hypertrace_cargo)
endif()
