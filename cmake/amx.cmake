# SPDX-License-Identifier: MIT
# The AMX kernels in emulation, for processors without AMX: the attn command and programs with the two sources that
# know of the tiles (src/cpu/host/features.c, src/cpu/amx) compiled a second time with ATTN_AMX_EMULATED and tests/amx beside
# them. They stand before the library at linking, so that its own two stay out. All skip without AVX-512 BF16.
#   tests/amx/t_*.c    cmocka programs with their own main
# tests/amx/time_strips.c is built by hand, on tiles: what steps of the forward cost.
if(NOT attn_x86_64 OR NOT ATTN_AMX_EMULATION)
  return()
endif()
file(GLOB_RECURSE tile_sources CONFIGURE_DEPENDS src/cpu/amx/*.c)
file(GLOB emulation CONFIGURE_DEPENDS tests/amx/amx_*.c)
attn_isa_flags(tile_sources)
attn_isa_flags(emulation)
add_library(attn_amx_objects OBJECT src/cpu/host/features.c ${tile_sources} ${emulation})
target_include_directories(attn_amx_objects PRIVATE include src tests)
target_compile_options(attn_amx_objects PRIVATE ${attn_warnings})
target_compile_definitions(attn_amx_objects PRIVATE ATTN_AMX_EMULATED=1)

function(attn_amx_program name)
  add_executable(${name} ${ARGN} $<TARGET_OBJECTS:attn_amx_objects>)
  target_compile_definitions(${name} PRIVATE ATTN_AMX_EMULATED=1)
  target_link_libraries(${name} PRIVATE attn_test_base PkgConfig::cmocka)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
endfunction()

file(GLOB programs CONFIGURE_DEPENDS tests/amx/t_*.c)
foreach(file IN LISTS programs)
  cmake_path(GET file STEM name)
  attn_amx_program(${name} ${file})
  string(REGEX REPLACE "^t_(amx_)?" "amx." test_name ${name})
  attn_test(${test_name} amx ${name})
endforeach()
# Tests of the cpu room that know of the AMX rows; there they run them only where the processor has it.
foreach(name ukr_pair ukr_flash ukr_tile ukr_tile_scores ukr_heads sdpa_cpu mla_cpu)
  attn_amx_program(t_amx_${name} tests/cpu/t_${name}.c)
  attn_test(amx.${name} amx t_amx_${name})
endforeach()
target_link_libraries(t_amx_sdpa_cpu PRIVATE attn_cpu_support)
target_link_libraries(t_amx_mla_cpu PRIVATE attn_cpu_support)
set_tests_properties(amx.mla_cpu PROPERTIES ENVIRONMENT "T_MLA_CPU_ISA=amx")
set_tests_properties(amx.sdpa_cpu PROPERTIES ENVIRONMENT "T_SDPA_CPU_ISA=amx;T_SDPA_CPU_CASES=400")

if(TARGET attn_cli)
  attn_amx_program(attn_amx cli/main.c)
  set(repeat 40)
  if(ATTN_SANITIZE)
    set(repeat 6)
  endif()
  # 77, nothing to run: the words "needs amx" of the summary say why
  attn_test(amx.check amx attn_amx check --kernel *amx* --repeat ${repeat} --timeout 900)
  # Scores near 200 of f16 where nobody asks for lse: products of low halves count.
  attn_check_test(amx.check_low_halves amx attn_amx attn_sdpa_fwd_amx_f16_any 76140508926963
                  "sdpa_fwd b=2 hq=8 sq=31 d=1 dv=128 f16 packed right=7 total_q=60 total_k=51 scale=-0.7 mask=f16")
  # A value that is not finite leaves a key head to the other tiles, whose rows of q are as far apart as sums of keys.
  attn_check_test(amx.check_not_finite amx attn_amx attn_sdpa_bwd_amx_f16_any 77005737674806
                  "sdpa_bwd hq=2 hk=1 sq=101 d=40 dv=64 f16 bottom_right sink grad_sink left=-1 scale=0.01 mask=f32")
  # A mask with one cell for all keys of a row hides them all, and the row has a sink in its lse.
  attn_check_test(amx.check_row_hidden amx attn_amx attn_sdpa_bwd_amx_bf16_any 124830603490252
                  "sdpa_bwd hq=8 sq=2 sk=418 d=160 dv=192 bf16 causal sink lse_with_sink dlse softcap=30 mask=bool")
  # A window so far away that the first query to see a key, times a group's heads, is beyond 64 bits.
  attn_check_test(amx.check_far_window amx attn_amx attn_sdpa_bwd_amx_bf16_any 125174434947491
                  "sdpa_bwd hq=12 hk=1 sq=47 sk=31 d=40 dv=80 bf16 bottom_right lse_empty_plus_inf right=-9223372036854775808 scale=0 mask=bf16")
  # Scores further below the reference than what a table's integers hold, in a step that all queries see.
  attn_check_test(amx.check_far_below amx attn_amx attn_sdpa_fwd_amx_bf16_any 28
                  "sdpa_fwd b=2 hq=4 sq=257 d=128 bf16 scale=1000 mask=bool")
  # Scores whose products with the factor are rounded by hundreds, and by so much that ALiBi's growth shows in them.
  attn_check_test(amx.check_far_scores amx attn_amx attn_sdpa_fwd_amx_f32_any 8
                  "sdpa_fwd b=2 hq=4 sq=257 d=32 f32 causal scale=1e+06")
  attn_check_test(amx.check_far_alibi amx attn_amx attn_sdpa_fwd_amx_f16_any 8
                  "sdpa_fwd b=2 hq=4 sq=257 sk=300 d=128 f16 bottom_right left=70 scale=100000 alibi=linear")
  # Rows of which a mask of -1e9 hides every key: their lse is as low, and only the difference of both counts.
  attn_check_test(amx.check_low_mask amx attn_amx attn_sdpa_bwd_amx_f16_any 37187033568511
                  "sdpa_bwd hq=4 hk=1 sq=31 sk=70 d=128 dv=39 f16 causal bottom_right lse_empty_plus_inf deterministic dlse grad_mask mask=f32")
  attn_check_test(amx.check_low_mask_bf16 amx attn_amx attn_sdpa_bwd_amx_bf16_any 181757931648202
                  "sdpa_bwd hq=1 sq=60 sk=103 d=320 bf16 causal sink seqlens_k left=0 mask=bf16")
  # The lowest number of bf16 as a mask hides every key of rows whose scores are beyond what e^score holds.
  attn_check_test(amx.check_lowest_mask amx attn_amx attn_sdpa_bwd_amx_bf16_any 342051700170554
                  "sdpa_bwd hq=4 hk=2 sq=63 d=138 dv=96 bf16 causal bottom_right lse_empty_plus_inf grad_mask mask=bf16 align=16")
  attn_check_test(amx.check_lowest_mask_f16 amx attn_amx attn_sdpa_bwd_amx_f16_any 342051700170729
                  "sdpa_bwd hq=2 hk=1 sq=64 sk=64 d=64 f16 mask=bf16")
  attn_check_test(amx.check_lowest_mask_f32 amx attn_amx attn_sdpa_bwd_amx_f32_any 342051700170554
                  "sdpa_bwd hq=2 hk=1 sq=64 sk=64 d=64 f32 mask=bf16")
  attn_check_test(amx.check_lowest_mask_one_key amx attn_amx attn_sdpa_bwd_amx_bf16_any 342051700170554
                  "sdpa_bwd hq=4 hk=2 sq=64 sk=1 d=64 bf16 mask=bf16")
  # Scores far beyond a softcap, of which the derivative is small and must stay exact.
  attn_check_test(amx.check_far_softcap amx attn_amx attn_sdpa_bwd_amx_bf16_any 268548411299707
                  "sdpa_bwd hq=4 hk=2 sq=16 sk=105 d=1 dv=192 bf16 left=64 softcap=30")
endif()
