# SPDX-License-Identifier: MIT
# Tests. Dropping a file is enough:
#   tests/unit/t_*.c, tests/contract/t_*.c   cmocka programs with their own main, one ctest each; other .c files beside
#                                            them are linked into each of them
#   tests/cli/*.sh                           scripts: $1 = the attn command, $2 = the source folder; exit 77 = skipped
#   tests/build/*.sh, tests/consumer/*.sh    scripts about what was built: $1 = build folder, $2 = source folder
#   tests/fuzz/fuzz_*.c                      with ATTN_FUZZ a libFuzzer program, else replayed by a ctest over
#                                            tests/fuzz/corpus/<name>/ and a fixed number of random mutations
find_package(PkgConfig REQUIRED)
pkg_check_modules(cmocka IMPORTED_TARGET cmocka)
if(NOT cmocka_FOUND)
  message(FATAL_ERROR "the tests need cmocka: run `make deps`, or configure with -DATTN_BUILD_TESTS=OFF")
endif()

# Everything a test may see: internal headers of the library, of the command, and of the tests.
add_library(attn_test_base INTERFACE)
target_include_directories(attn_test_base INTERFACE src cli tests)
target_compile_options(attn_test_base INTERFACE ${attn_warnings})
if(TARGET attn_cli_parts)
  target_link_libraries(attn_test_base INTERFACE attn_cli_parts)
  target_compile_definitions(attn_test_base INTERFACE ATTN_TEST_CLI=1)
endif()
target_link_libraries(attn_test_base INTERFACE attn_static Threads::Threads m)
target_link_options(attn_test_base INTERFACE -Wl,--as-needed)

# Extra words after the label are arguments of the command.
function(attn_test name label)
  add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
  set_tests_properties(${name} PROPERTIES LABELS ${label} SKIP_RETURN_CODE 77 TIMEOUT 600)
endfunction()

foreach(room unit contract)
  file(GLOB programs CONFIGURE_DEPENDS tests/${room}/t_*.c)
  file(GLOB support CONFIGURE_DEPENDS tests/${room}/*.c)
  if(programs)
    list(REMOVE_ITEM support ${programs})
  endif()
  if(support)
    add_library(attn_${room}_support STATIC ${support})
    target_link_libraries(attn_${room}_support PUBLIC attn_test_base PkgConfig::cmocka)
  endif()
  foreach(file IN LISTS programs)
    cmake_path(GET file STEM name)
    add_executable(${name} ${file})
    if(support)
      target_link_libraries(${name} PRIVATE attn_${room}_support)
    endif()
    target_link_libraries(${name} PRIVATE attn_test_base PkgConfig::cmocka)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    string(REGEX REPLACE "^t_(${room}_)?" "${room}." test_name ${name})
    attn_test(${test_name} ${room} ${name})
    # Sources that a test reads (documents, examples) are found through this, not through a path of this machine.
    set_tests_properties(${test_name} PROPERTIES ENVIRONMENT "SOURCE_DIR=${PROJECT_SOURCE_DIR}")
  endforeach()
endforeach()

if(TARGET attn_cli)
  file(GLOB scripts CONFIGURE_DEPENDS tests/cli/*.sh)
  foreach(file IN LISTS scripts)
    cmake_path(GET file STEM name)
    attn_test(cli.${name} cli bash ${file} $<TARGET_FILE:attn_cli> ${PROJECT_SOURCE_DIR})
    set_tests_properties(cli.${name} PROPERTIES
                         ENVIRONMENT "ATTN=$<TARGET_FILE:attn_cli>;SOURCE_DIR=${PROJECT_SOURCE_DIR};BUILD_DIR=${PROJECT_BINARY_DIR}")
  endforeach()
endif()

# What was installed and linked: only meaningful without sanitizers.
if(ATTN_BUILD_SHARED AND NOT ATTN_SANITIZE AND NOT ATTN_COVERAGE)
  file(GLOB scripts CONFIGURE_DEPENDS tests/build/*.sh tests/consumer/*.sh)
  foreach(file IN LISTS scripts)
    cmake_path(GET file STEM name)
    attn_test(build.${name} build bash ${file} ${PROJECT_BINARY_DIR} ${PROJECT_SOURCE_DIR})
    set_tests_properties(build.${name} PROPERTIES ENVIRONMENT "CC=${CMAKE_C_COMPILER};CMAKE=${CMAKE_COMMAND}")
  endforeach()
endif()

set(ATTN_FUZZ_MUTATIONS 4000 CACHE STRING "random inputs per fuzz target in an ordinary test run")
file(GLOB targets CONFIGURE_DEPENDS tests/fuzz/fuzz_*.c)
foreach(file IN LISTS targets)
  cmake_path(GET file STEM name)
  string(REGEX REPLACE "^fuzz_" "" short ${name})
  if(short MATCHES "^(npy|safetensors)$" AND NOT TARGET attn_cli_parts)
    continue()
  endif()
  add_executable(${name} ${file})
  target_link_libraries(${name} PRIVATE attn_test_base)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
  set(corpus ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${short})
  if(ATTN_FUZZ)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  else()
    target_sources(${name} PRIVATE tests/fuzz/replay.c)
    attn_test(fuzz.${short} fuzz ${name} ${corpus} ${ATTN_FUZZ_MUTATIONS})
  endif()
endforeach()
