# SPDX-License-Identifier: MIT
# Tests. Dropping a file is enough:
#   tests/{unit,cpu,contract}/t_*.c          cmocka programs with their own main, one ctest each; other .c files beside
#                                            them are linked into each of them
#   tests/gpu/t_*.c                          the same for a GPU: skipped without one, but for t_gpu_stub and t_gpu_kept_graph
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
if(attn_cuda_on)
  # A CUDA driver for machines without a GPU, opened by path like the real one.
  add_library(cuda_stub MODULE tests/stub_driver/cuda_stub.c tests/stub_driver/cuda_stub_graph.c
              tests/stub_driver/cuda_stub_event.c tests/stub_driver/cuda_stub_node.c
              tests/stub_driver/cuda_stub_tensor.c)
  target_compile_options(cuda_stub PRIVATE ${attn_warnings})
  target_include_directories(cuda_stub PRIVATE include src tests)
  set_target_properties(cuda_stub PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests C_VISIBILITY_PRESET hidden)
  target_link_libraries(cuda_stub PRIVATE Threads::Threads)
  target_include_directories(attn_test_base INTERFACE .)
  target_compile_definitions(attn_test_base INTERFACE ATTN_HAVE_CUDA=1 "ATTN_TEST_CUDA_STUB=\"$<TARGET_FILE:cuda_stub>\"")
endif()
find_path(ATTN_CUDA_INCLUDE cuda.h HINTS /usr/local/cuda/include NO_CACHE)

set(attn_test_timeout 600)
if(ATTN_SANITIZE)
  set(attn_test_timeout 1800)
endif()
# Extra words after the label are arguments of the command.
function(attn_test name label)
  add_test(NAME ${name} COMMAND ${ARGN} WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
  set_tests_properties(${name} PROPERTIES LABELS ${label} SKIP_RETURN_CODE 77 TIMEOUT ${attn_test_timeout})
endfunction()

# A problem that a kernel failed once, with the data of that seed. More options of `attn check` follow.
function(attn_check_test name label command kernel seed problem)
  attn_test(${name} ${label} ${command} check --kernel ${kernel} --seed ${seed} --problem "${problem}" ${ARGN})
endfunction()

set(rooms unit cpu contract)
if(attn_cuda_on AND TARGET attn_cli_parts)
  list(APPEND rooms gpu)
endif()
foreach(room IN LISTS rooms)
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
    if(NOT room STREQUAL gpu)
      list(APPEND quick_programs ${name})
    endif()
    # Sources that a test reads (documents, examples) are found through this, not through a path of this machine.
    set_tests_properties(${test_name} PROPERTIES ENVIRONMENT "SOURCE_DIR=${PROJECT_SOURCE_DIR}")
  endforeach()
endforeach()

add_custom_target(attn_quick_tests DEPENDS ${quick_programs}) # what `make quick` builds beside the command

foreach(name t_cuda_stub t_former_names t_gpu_stub t_gpu_kept_graph)
  if(TARGET ${name} AND TARGET cuda_stub)
    add_dependencies(${name} cuda_stub)
  endif()
endforeach()
if(TARGET t_driver_abi AND ATTN_CUDA_INCLUDE)
  target_compile_definitions(t_driver_abi PRIVATE ATTN_TEST_CUDA_HEADER=1)
  target_include_directories(t_driver_abi SYSTEM PRIVATE ${ATTN_CUDA_INCLUDE})
endif()

if(TARGET attn_cli)
  file(GLOB scripts CONFIGURE_DEPENDS tests/cli/*.sh)
  foreach(file IN LISTS scripts)
    cmake_path(GET file STEM name)
    attn_test(cli.${name} cli bash ${file} $<TARGET_FILE:attn_cli> ${PROJECT_SOURCE_DIR})
    set_tests_properties(cli.${name} PROPERTIES
                         ENVIRONMENT "ATTN=$<TARGET_FILE:attn_cli>;SOURCE_DIR=${PROJECT_SOURCE_DIR};BUILD_DIR=${PROJECT_BINARY_DIR}")
  endforeach()
  # Thousands of equal probabilities: the tester's sums and those of the reference must not drift from each other.
  attn_check_test(cli.check_equal_keys cli attn_cli attn_sdpa_fwd_ref_f64_any 654035
                  "sdpa_fwd b=2 hq=8 hk=1 sq=6 sk=4097 d=512 dv=8 f64 sink")
  # A sink of -inf beside values that are not finite.
  attn_check_test(cli.check_no_sink cli attn_cli attn_sdpa_bwd_c_f32_any 220616364694338
                  "sdpa_bwd b=2 hq=16 hk=4 sq=8 sk=6 d=224 f32 bottom_right sink lse_with_sink dlse grad_sink right=7 mask=bool")
  # A value that is not finite, of a key that no query of the row sees: how many keys a task loads must not show in it.
  attn_check_test(cli.check_hidden_not_finite cli attn_cli attn_sdpa_fwd_*_any 77
                  "sdpa_fwd b=2 hq=4 sq=257 d=128 bf16 causal scale=1e+31 mask=f32")
  # Scores of 576 products, far smaller than the products' size: a sum in one chain is off by more than the bound of lse.
  attn_check_test(cli.check_wide_scores cli attn_cli attn_mla_fwd_c_f16_any 140539591129611
                  "mla_fwd hq=16 sq=1 sk=38 d=576 topk=32 f16 deterministic scale=0.3 align=16")
  # Keys that are named 64 times: additions that are rounded alike.
  attn_check_test(cli.check_many_times cli attn_cli attn_mla_fwd_c_f32_any 99546448056374
                  "mla_fwd hq=7 sq=2 sk=69 d=512 topk=162 f32 lse_empty_plus_inf scale=0.1 align=16")
  attn_check_test(cli.check_many_terms cli attn_cli attn_mla_bwd_c_f32_any 181450876206813
                  "mla_bwd hq=1 sq=2 sk=4 d=512 topk=1414 f32 causal accumulate dlse q_start=5 scale=0.01")
  # Equal probabilities, which bf16 rounds all the same way.
  attn_check_test(cli.check_equal_probabilities cli attn_cli attn_mla_bwd_avx512bf16_bf16_any 186499850239686
                  "mla_bwd hq=1 sq=9 sk=424 d=576 topk=300 bf16 lse_base_2 dlse align=16" --overlap 0.5)
  # dS of one key that are nearly equal: which way bf16 rounds each follows from its query.
  attn_check_test(cli.check_few_steps cli attn_cli attn_sdpa_bwd_*_bf16_any 17443146129524
                  "sdpa_bwd hq=8 hk=4 sq=119 d=1 bf16 sink seqlens_k")
  attn_check_test(cli.check_few_steps_d4 cli attn_cli attn_sdpa_bwd_*_bf16_any 5027
                  "sdpa_bwd hq=8 hk=4 sq=119 d=4 bf16 sink seqlens_k")
  attn_check_test(cli.check_few_steps_scale cli attn_cli attn_sdpa_bwd_*_bf16_any 5027
                  "sdpa_bwd b=2 hq=2 sq=16 sk=200 d=1 bf16 sink scale=0.01")
  # One row of k, values of one number: dS of a binade that are all rounded by the same amount.
  attn_check_test(cli.check_one_row_of_k cli attn_cli attn_sdpa_bwd_*_bf16_any 920141 "sdpa_bwd hq=8 hk=4 sq=119 d=1 bf16 causal")
  # A row of dout with an infinity, and a sink that leaves P no number of f32: what NaN or infinity comes of it is not judged.
  attn_check_test(cli.check_infinite_dout_behind_sink cli attn_cli attn_sdpa_bwd_*_bf16_any 111363872677371
                  "sdpa_bwd hq=12 hk=3 sq=1 sk=345 d=1 bf16 sink lse_base_2 grad_sink left=64")
  # Infinities in a key and in a query row, behind a softcap.
  attn_check_test(cli.check_infinite_key_softcap cli attn_cli attn_sdpa_bwd_*_f16_any 4042981091873
                  "sdpa_bwd hq=2 hk=1 sq=200 sk=200 d=64 f16 causal softcap=3 align=16")
  attn_check_test(cli.check_infinite_key_softcap_fwd cli attn_cli attn_sdpa_fwd_*_bf16_any 4042981091873
                  "sdpa_fwd hq=2 hk=1 sq=200 sk=200 d=64 bf16 causal softcap=3 align=16")
  attn_check_test(cli.check_infinite_dout_behind_sink_f16 cli attn_cli attn_sdpa_bwd_*_f16_any 274343615353956
                  "sdpa_bwd b=2 hq=4 hk=1 sq=1 sk=1820 d=80 f16 bottom_right sink lse_base_2 grad_sink left=3 align=128")
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
  if(short STREQUAL "ptx") # the simulator's reader (cmake/sim.cmake)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:attn_sim_objects>)
    target_include_directories(${name} PRIVATE sim)
    target_link_libraries(${name} PRIVATE ${CMAKE_DL_LIBS} PkgConfig::libzstd)
  endif()
  set(corpus ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${short})
  if(ATTN_FUZZ)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  else()
    target_sources(${name} PRIVATE tests/fuzz/replay.c)
    attn_test(fuzz.${short} fuzz ${name} ${corpus} ${ATTN_FUZZ_MUTATIONS})
  endif()
endforeach()
