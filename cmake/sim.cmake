# SPDX-License-Identifier: MIT
# Tests of the PTX simulator, which cmake/sim_library.cmake builds.
# CUDA programs through attn-sim: right ones, and faults planted into one of them.
if(attn_cuda_on AND NOT ATTN_SANITIZE) # a sanitizer's own library would have to be loaded first
  set(run_program ${PROJECT_SOURCE_DIR}/tests/sim/programs.sh ${ATTN_NVCC} $<TARGET_FILE:attn_sim>)
  set(programs ${PROJECT_SOURCE_DIR}/tests/sim/programs)
  foreach(program vectors transpose together graphs products groups libraries)
    attn_test(sim.program_${program} sim ${run_program} ${programs}/${program}.cu right)
  endforeach()
  attn_test(sim.program_missing_barrier sim ${run_program} ${programs}/transpose.cu race -DMISSING_BARRIER "THE READ")
  attn_test(sim.program_refused sim ${run_program} ${programs}/refused.cu trap -DPLAIN "THE ASSERTION")
  attn_test(sim.program_too_far sim ${run_program} ${programs}/transpose.cu "out of bounds" -DTOO_FAR "in.(y")
endif()

# Single instructions and small kernels of sm_90 and sm_100, also under sanitizers.
file(GLOB parts CONFIGURE_DEPENDS tests/sim/golden/hopper_golden*.c)
add_executable(hopper_golden ${parts})
target_compile_options(hopper_golden PRIVATE ${attn_warnings})
target_link_libraries(hopper_golden PRIVATE ${CMAKE_DL_LIBS})
set_target_properties(hopper_golden PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
# sm_100: against a second statement on the host, until a device has answered.
file(GLOB parts CONFIGURE_DEPENDS tests/sim/golden/blackwell_*.c)
add_executable(blackwell_golden ${parts})
target_compile_options(blackwell_golden PRIVATE ${attn_warnings})
target_link_libraries(blackwell_golden PRIVATE ${CMAKE_DL_LIBS} m)
set_target_properties(blackwell_golden PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
foreach(policy eager late random)
  attn_test(sim.blackwell_golden_${policy} sim blackwell_golden check $<TARGET_FILE:attn_sim_cuda>)
  set_tests_properties(sim.blackwell_golden_${policy} PROPERTIES ENVIRONMENT ATTNSIM_POLICY=${policy})
endforeach()
file(GLOB records CONFIGURE_DEPENDS tests/sim/golden/blackwell_golden_*.txt) # what devices answered
foreach(record IN LISTS records)
  get_filename_component(name ${record} NAME_WE)
  attn_test(sim.${name} sim blackwell_golden replay $<TARGET_FILE:attn_sim_cuda> ${record})
endforeach()
foreach(name sm90 sm100 findings forms maps global order registers counts) # protocols of a chip; global memory: in a kernel, between kernels and copies; places
  add_executable(t_sim_${name} tests/sim/t_sim_${name}.c tests/sim/kernel_mutants.c)
  target_compile_options(t_sim_${name} PRIVATE ${attn_warnings})
  target_link_libraries(t_sim_${name} PRIVATE ${CMAKE_DL_LIBS} m)
  set_target_properties(t_sim_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  attn_test(sim.${name} sim t_sim_${name} $<TARGET_FILE:attn_sim_cuda>)
endforeach()
add_executable(t_sim_coverage tests/sim/t_sim_coverage.c tests/sim/kernel_mutants.c)
target_compile_options(t_sim_coverage PRIVATE ${attn_warnings})
target_link_libraries(t_sim_coverage PRIVATE ${CMAKE_DL_LIBS} m)
set_target_properties(t_sim_coverage PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
attn_test(sim.coverage sim t_sim_coverage $<TARGET_FILE:attn_sim_cuda> ${PROJECT_SOURCE_DIR}/tools/sim_coverage.py)
if(EXISTS ${PROJECT_SOURCE_DIR}/tests/sim/golden/hopper_golden_h100.txt)
  attn_test(sim.hopper_golden_h100 sim hopper_golden replay $<TARGET_FILE:attn_sim_cuda>
            ${PROJECT_SOURCE_DIR}/tests/sim/golden/hopper_golden_h100.txt)
  # It is one process, whose driver keeps what it has until the end.
  set_tests_properties(sim.hopper_golden_h100 PROPERTIES ENVIRONMENT ASAN_OPTIONS=detect_leaks=0)
endif()

if(NOT ATTN_SANITIZE) # these open it by way of others, or compile kernels
  foreach(name faults mutants driver)
    add_executable(t_sim_${name} tests/sim/t_sim_${name}.c)
    target_compile_options(t_sim_${name} PRIVATE ${attn_warnings})
    target_compile_definitions(t_sim_${name} PRIVATE "ATTN_TEST_SIM=\"$<TARGET_FILE:attn_sim_cuda>\"")
    target_link_libraries(t_sim_${name} PRIVATE PkgConfig::cmocka ${CMAKE_DL_LIBS})
    set_target_properties(t_sim_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    add_dependencies(t_sim_${name} attn_sim_cuda)
    attn_test(sim.${name} sim t_sim_${name})
  endforeach()
  # Single instructions against what a GPU gave (tests/sim/golden/golden.c).
  file(GLOB parts CONFIGURE_DEPENDS tests/sim/golden/golden*.c)
  add_executable(sim_golden ${parts})
  target_compile_options(sim_golden PRIVATE ${attn_warnings})
  target_link_libraries(sim_golden PRIVATE ${CMAKE_DL_LIBS} m)
  set_target_properties(sim_golden PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  attn_test(sim.golden_h100 sim sim_golden replay $<TARGET_FILE:attn_sim_cuda> ${PROJECT_SOURCE_DIR}/tests/sim/golden/golden_h100.bin)
  attn_test(sim.golden_h100_sums sim ${CMAKE_COMMAND} -E env ATTNSIM_MMA=h100 $<TARGET_FILE:sim_golden> replay
            $<TARGET_FILE:attn_sim_cuda> ${PROJECT_SOURCE_DIR}/tests/sim/golden/golden_h100.bin)
  if(attn_cuda_on) # a step of several kernels by itself, under each policy; a kernel of no operator
    foreach(name ranges merge)
      add_executable(t_sim_${name} tests/sim/t_sim_${name}.c)
      target_compile_definitions(t_sim_${name} PRIVATE "ATTN_TEST_SIM=\"$<TARGET_FILE:attn_sim_cuda>\"")
      target_link_libraries(t_sim_${name} PRIVATE attn_test_base PkgConfig::cmocka)
      set_target_properties(t_sim_${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
      add_dependencies(t_sim_${name} attn_sim_cuda)
    endforeach()
    attn_test(sim.merge sim t_sim_merge)
    foreach(policy eager late random)
      attn_test(sim.ranges_${policy} sim t_sim_ranges)
      set_tests_properties(sim.ranges_${policy} PROPERTIES ENVIRONMENT ATTNSIM_POLICY=${policy})
    endforeach()
  endif()
  if(attn_cuda_on AND TARGET attn_cli)
    attn_test(sim.kernel_counts sim ${PROJECT_SOURCE_DIR}/tests/sim/kernel_counts.sh $<TARGET_FILE:attn_cli> $<TARGET_FILE:attn_sim_cuda>
              ${PROJECT_SOURCE_DIR}/tools/counts_between.py)
    function(attn_sim_check name kernel seed problem)
      attn_check_test(sim.${name} sim attn_cli attn_${kernel} ${seed} "${problem}" --driver $<TARGET_FILE:attn_sim_cuda> --device cuda:0)
      set_tests_properties(sim.${name} PROPERTIES ENVIRONMENT "ATTN_CUDA_IMAGE=ptx;ATTNSIM_PTX=${PROJECT_BINARY_DIR}/cuda;${ARGN}")
      if(ATTN_CUDA_VARIANTS STREQUAL ".")
        set_tests_properties(sim.${name} PROPERTIES SKIP_RETURN_CODE -1) # every kernel is there: a problem that it refuses is a failure
      endif()
    endfunction()
    # A key that no query sees, with NaN in V, where rows past the end would see it.
    attn_sim_check(check_past_the_end sdpa_bwd_sm80_bf16_d64 100081902513337
                   "sdpa_bwd hq=2 sq=1 sk=30 d=1 bf16 causal lse_base_2 left=1000000007")
    # A sink of -inf beside values that are not finite.
    attn_sim_check(check_no_sink sdpa_bwd_sm80_bf16_d64_full 16 "sdpa_bwd hq=2 sq=8 sk=6 d=64 bf16 sink grad_sink")
    attn_sim_check(check_no_sink_wide sdpa_bwd_sm80_f32_d128 648 "sdpa_bwd hq=2 sq=8 sk=6 d=320 f32 sink grad_sink")
    # Behind a softcap, infinities in a key and in a query row, some of whose tiles' cells are hidden: P is a number, and
    # one column of dq, and of dk, is NaN.
    foreach(row sm80_f16_d64_full sm80_bf16_d64_full wgmma_sm90_f16_d64_mod wgmma_sm90_bf16_d64_mod sm100_f16_d64_mod sm100_bf16_d64_mod
                sm80_f16_d128_full sm80_bf16_d128_full wgmma_sm90_f16_d128_mod wgmma_sm90_bf16_d128_mod sm100_f16_d128_mod sm100_bf16_d128_mod
                sm100_f16_d192_v128_mod sm100_bf16_d192_v128_mod)
      string(REGEX MATCH "b?f16" dtype ${row})
      string(REGEX MATCH "d(64|128|192_v128)" dim ${row})
      set(gpu h100)
      if(row MATCHES "^sm100")
        set(gpu b200)
      endif()
      set(seed 4042981091873)
      if(dim STREQUAL "d128")
        set(seed 18167585765745)
      endif()
      string(REPLACE "d" "d=" dim ${dim})
      string(REPLACE "_v" " dv=" dim ${dim})
      attn_sim_check(check_infinite_key_softcap_${row} sdpa_bwd_${row} ${seed}
                     "sdpa_bwd hq=2 hk=1 sq=200 sk=200 ${dim} ${dtype} causal softcap=3 align=16" ATTNSIM_GPU=${gpu} ATTNSIM_SMS=3)
    endforeach()
    # Heads of a group whose dout differs by 2^9, scores that a softcap flattens: dS in f16 have one factor.
    set(problem "sdpa_bwd hq=2 hk=1 sq=51 sk=76 d=128 f16 softcap=30 align=16")
    foreach(row sm80_f16_d128_full sm80_f16_d128_full_ordered sm80_f16_d256_full)
      attn_sim_check(check_uneven_heads_${row} sdpa_bwd_${row} 409965880580830
                     "sdpa_bwd hq=2 hk=1 sq=51 sk=76 d=128 f16 sink lse_empty_plus_inf dlse grad_mask grad_alibi grad_sink softcap=30 alibi=distance mask=f16 align=16")
    endforeach()
    attn_sim_check(check_uneven_heads_wgmma_sm90_f16_d128_mod sdpa_bwd_wgmma_sm90_f16_d128_mod 409965880580830 "${problem}" ATTNSIM_GPU=h100)
    attn_sim_check(check_uneven_heads_sm100_f16_d128_mod sdpa_bwd_sm100_f16_d128_mod 409965880580830 "${problem}" ATTNSIM_GPU=b200)
    # In order; with a mask that hides some of them.
    foreach(row sm80_f16_d64_full wgmma_sm90_f16_d64_mod)
      attn_sim_check(check_infinite_key_softcap_ordered_${row} sdpa_bwd_${row}_ordered 4042981091873
                     "sdpa_bwd hq=2 hk=1 sq=200 sk=200 d=64 f16 causal softcap=3 deterministic align=16" ATTNSIM_SMS=3)
    endforeach()
    attn_sim_check(check_infinite_key_softcap_mask sdpa_bwd_sm80_f16_d64_full 4042981091873
                   "sdpa_bwd hq=2 hk=1 sq=100 sk=200 d=64 f16 softcap=3 mask=bool align=16" ATTNSIM_SMS=3)
    # In a row of NaN: a mask of -inf leaves an infinite product behind the cap out, and one of NaN in.
    attn_sim_check(check_infinite_key_softcap_left_out_d128 sdpa_bwd_sm80_bf16_d128_full 223498439621413
                   "sdpa_bwd b=3 hq=12 sq=2 sk=128 d=27 dv=80 bf16 bottom_right lse_empty_plus_inf grad_alibi right=100 softcap=0.4 alibi=distance mask=bf16"
                   ATTNSIM_GPU=h100)
    attn_sim_check(check_infinite_key_softcap_left_out_d256 sdpa_bwd_sm80_f16_d256_full_ordered 222811076651172
                   "sdpa_bwd hq=3 hk=1 sq=92 sk=73 d=8 dv=224 f16 deterministic grad_mask grad_alibi scale=-0.125 softcap=1.5 alibi=linear mask=bf16"
                   ATTNSIM_GPU=h100)
    attn_sim_check(check_infinite_key_softcap_left_out_d64 sdpa_bwd_sm80_f16_d64_full 354708998474360
                   "sdpa_bwd hq=2 hk=1 sq=7 sk=66 d=64 f16 sink lse_with_sink dlse softcap=0.4 mask=f16 align=16" ATTNSIM_GPU=h100)
    # A mask of the lowest number brings lse to -3.4e38: the row is none past its sequence.
    foreach(row bf16_d64_full bf16_d128_full_ordered)
      attn_sim_check(check_infinite_key_softcap_low_mask_${row} sdpa_bwd_sm80_${row} 521759168609192
                     "sdpa_bwd hq=8 hk=2 sq=26 sk=16 d=64 bf16 causal bottom_right seqlens_k grad_mask scale=0.01 softcap=30 mask=bf16" ATTNSIM_GPU=h100)
    endforeach()
    # The same without softcap: +inf in a mask makes the row NaN, an infinity the key's score -inf.
    foreach(seed 42949673002 42949673062 42949673093)
      attn_sim_check(check_infinite_key_left_out_${seed} sdpa_bwd_sm80_bf16_d64_full ${seed}
                     "sdpa_bwd hq=2 hk=2 sq=1 sk=12 d=64 bf16 mask=f32 align=16" ATTNSIM_GPU=h100)
    endforeach()
    # In f64, without a softcap, in tiles all of whose pairs are visible: a key whose infinity makes scores of -inf, which is
    # left out of dq as a hidden one is.
    foreach(row sm80_f64_d64 sm90_f64_d64)
      attn_sim_check(check_infinite_key_f64_short_${row} sdpa_bwd_${row} 28636093259648
                     "sdpa_bwd hq=3 hk=1 sq=24 sk=169 d=80 f64 bottom_right lse_empty_plus_inf deterministic" ATTNSIM_GPU=h100)
      attn_sim_check(check_infinite_key_f64_window_${row} sdpa_bwd_${row} 512760836784460
                     "sdpa_bwd hq=3 hk=1 sq=63 sk=65 d=128 dv=72 f64 bottom_right deterministic right=3" ATTNSIM_GPU=h100)
    endforeach()
    # Rows without a gradient beside NaN: a sink of +inf where V has one; q has one where lse is but the sink's.
    foreach(row bf16_d64 bf16_d256)
      set(problem "sdpa_bwd hq=2 sq=20 sk=9 d=64 bf16 causal bottom_right sink lse_with_sink grad_sink")
      attn_sim_check(check_all_to_sink_${row} sdpa_bwd_sm80_${row} 520 "${problem}")
      attn_sim_check(check_sink_alone_${row} sdpa_bwd_sm80_${row} 100 "${problem}")
    endforeach()
    # dS of one key that are nearly equal, which bf16 rounds as their queries are.
    attn_sim_check(check_few_steps sdpa_bwd_sm80_bf16_d64_full 17443146129524 "sdpa_bwd hq=8 hk=4 sq=119 d=1 bf16 sink seqlens_k")
    # No sequence: nothing is split, nothing is launched.
    attn_sim_check(check_fwd_no_sequence sdpa_fwd_sm80_bf16_d64_full 1 "sdpa_fwd b=0 hq=4 hk=2 sq=9 sk=21 d=64 bf16")
    # Every kernel on problems with an empty extent, on its own generation's profile, where all that accept must have an estimate.
    foreach(kernels a100=sm80 h100=sm90 b200=sm100)
      string(REPLACE "=" ";" words ${kernels})
      list(GET words 0 gpu)
      list(GET words 1 arch)
      attn_test(sim.empty_extents_${gpu} sim attn_cli check --driver $<TARGET_FILE:attn_sim_cuda> --properties=*empty* --kernel *_${arch}_* --repeat 2)
      set_tests_properties(sim.empty_extents_${gpu} PROPERTIES ENVIRONMENT
                           "ATTN_CUDA_IMAGE=ptx;ATTNSIM_PTX=${PROJECT_BINARY_DIR}/cuda;ATTNSIM_GPU=${gpu}")
    endforeach()
    # A NaN in V of a row whose sink, +inf, takes all: 0 times it is NaN.
    foreach(row f32_d128 f32_d128_halves)
      attn_sim_check(check_nan_behind_sink_${row} sdpa_fwd_sm80_${row} 50746099350515
                     "sdpa_fwd b=2 hq=4 hk=1 sq=97 sk=15 d=96 f32 causal sink lse_base_2 lse_empty_plus_inf seqlens_q softcap=1.5")
    endforeach()
    # dS below the normal numbers of f16: a softcap far beyond which the scores lie, a row with all its weight on one slot.
    attn_sim_check(check_small_ds_dense sdpa_bwd_sm80_f16_d64_full 123638556534288
                   "sdpa_bwd hq=4 hk=2 sq=127 d=8 f16 lse_empty_plus_inf softcap=30 mask=bool align=16")
    attn_sim_check(check_small_ds_sparse mla_bwd_sm80_f16_d576_h16_det 178206535024231
                   "mla_bwd hq=7 sq=6 sk=259 d=576 topk=64 f16 causal sink lse_base_2 deterministic topk_length q_start=158 dkv=f32")
    # dout of the last quarter of the heads is 2^9 times the others': their warps have a part in the power of two, too.
    foreach(heads 128 64)
      attn_sim_check(check_sm100_uneven_heads_${heads} mla_bwd_sm100_f16_d512_h${heads} 351843720888321
                     "mla_bwd hq=${heads} sq=2 sk=400 d=512 topk=192 f16 align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=2)
    endforeach()
    # Blackwell: P of one head (with_dist) and Delta (grad_sink) alone; all of it, several items a pair and tiles an item.
    attn_sim_check(check_sm100_scores mla_bwd_sm100_bf16_d576_h128 12
                   "mla_bwd hq=1 sq=2 sk=200 d=576 topk=130 bf16 sink grad_sink dlse topk_length with_dist align=16" ATTNSIM_GPU=b200)
    attn_sim_check(check_sm100_all mla_bwd_sm100_bf16_d576_h128_det 13
                   "mla_bwd b=2 hq=128 sq=3 sk=300 d=576 topk=300 bf16 causal q_start=200 topk_length with_dist align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=4)
    # No keys: kv may have no address, which no tensor map takes.
    attn_sim_check(check_sm100_no_keys mla_bwd_sm100_bf16_d576_h128 1 "mla_bwd hq=7 sq=3 sk=0 d=576 topk=127 bf16 align=16" ATTNSIM_GPU=b200)
    # Work tiles of 64 heads: the same; heads that do not exist; two blocks of heads.
    attn_sim_check(check_sm100_h64_all mla_bwd_sm100_bf16_d576_h64 13
                   "mla_bwd b=2 hq=64 sq=3 sk=300 d=576 topk=300 bf16 causal q_start=200 topk_length with_dist align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=2)
    attn_sim_check(check_sm100_h64_few mla_bwd_sm100_bf16_d576_h64 12
                   "mla_bwd hq=19 sq=4 sk=300 d=576 topk=300 bf16 topk_length sink grad_sink dlse with_dist align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=4)
    attn_sim_check(check_sm100_h64_blocks mla_bwd_sm100_bf16_d512_h64_det 17
                   "mla_bwd hq=100 sq=3 sk=300 d=512 topk=200 bf16 deterministic with_dist align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=5)
    # f16: the power of two of P and dS falls within a work tile.
    foreach(row h128 h64)
      attn_sim_check(check_sm100_f16_${row} mla_bwd_sm100_f16_d512_${row} 7
                     "mla_bwd hq=20 sq=2 sk=400 d=512 topk=192 f16 align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=2)
    endforeach()
    attn_sim_check(check_sm100_fwd mla_fwd_sm100_bf16_d576_h128 15
                   "mla_fwd b=2 hq=100 sq=4 sk=400 d=576 topk=300 bf16 causal q_start=300 topk_length sink scale=2 align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=4)
    attn_sim_check(check_sm100_fwd_parts mla_fwd_sm100_bf16_d512_h128 2
                   "mla_fwd hq=100 sq=2 sk=900 d=512 topk=700 bf16 topk_length sink align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=16)
    # A CTA a query: batches, heads that do not exist, O rescaled; several work tiles a CTA, the next one's scores before
    # the last output; parts; 192 heads as three work tiles.
    attn_sim_check(check_sm100_fwd_h64 mla_fwd_sm100_bf16_d576_h64 15
                   "mla_fwd b=2 hq=50 sq=4 sk=400 d=576 topk=300 bf16 causal q_start=300 topk_length sink scale=2 align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=8)
    attn_sim_check(check_sm100_fwd_h64_many mla_fwd_sm100_f16_d512_h64 5
                   "mla_fwd hq=192 sq=3 sk=400 d=512 topk=130 f16 topk_length lse_base_2 align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=2)
    attn_sim_check(check_sm100_fwd_h64_parts mla_fwd_sm100_bf16_d512_h64 2
                   "mla_fwd hq=40 sq=2 sk=900 d=512 topk=700 bf16 topk_length sink align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=16)
    attn_sim_check(check_sm100_dist dist_sm100_bf16_d576_h128 15
                   "dist hq=100 sq=5 sk=900 d=576 topk=700 bf16 topk_length dist_norm=l1 align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=4)
    # Joined lists: keys that lists name again, and keys over many ranges.
    attn_sim_check(check_join_again mla_join_sm80_i32_g8 3 "mla_join sq=18 sk=20 topk=70 i32 group=8 topk_length")
    attn_sim_check(check_join_ranges mla_join_sm80_i32_g4 5 "mla_join sq=7 sk=2147483648 topk=40 i32 group=4" ATTNSIM_SMS=1)
    # A NaN of a key that some queries of a group name and others do not; groups of 16 and of 2, of lists that name keys
    # again, with rules of their own; several groups a CTA.
    attn_sim_check(check_joined_nan mla_fwd_joined_sm90_bf16_d576 97 "mla_fwd hq=8 sq=8 sk=40 d=576 topk=8 bf16 align=16")
    attn_sim_check(check_joined_16 mla_fwd_joined_sm90_f16_d512 3
                   "mla_fwd b=2 hq=3 sq=37 sk=90 d=512 topk=70 f16 causal q_start=40 k_stride=2 topk_length sink align=16" ATTNSIM_SMS=2)
    attn_sim_check(check_joined_2 mla_fwd_joined_sm90_bf16_d512 4
                   "mla_fwd hq=32 sq=11 sk=300 d=512 topk=200 bf16 causal q_start=200 lse_base_2 align=16" ATTNSIM_SMS=2)
    attn_sim_check(check_joined_dist dist_joined_sm90_bf16_d576 5
                   "dist b=2 hq=2 sq=21 sk=90 d=576 topk=70 bf16 causal q_start=40 k_stride=2 topk_length dist_norm=l1 align=16" ATTNSIM_SMS=2)
    attn_sim_check(check_joined_dist_2 dist_joined_sm90_f16_d512 6
                   "dist hq=32 sq=7 sk=300 d=512 topk=333 f16 dist_norm=mean lse_base_2 align=16")
    # The backward: a NaN of q or of a key, in one tile and in two; groups of 16 and of 2, the last round in parts; sums
    # that the cache does not hold, so that tiles come in order of keys and back.
    attn_sim_check(check_joined_bwd_nan mla_bwd_joined_sm90_bf16_d576 97 "mla_bwd hq=8 sq=8 sk=40 d=576 topk=8 bf16 align=16")
    attn_sim_check(check_joined_bwd_nan_lse mla_bwd_joined_sm90_bf16_d576 99 "mla_bwd hq=8 sq=8 sk=100 d=576 topk=20 bf16 align=16")
    attn_sim_check(check_joined_bwd_16 mla_bwd_joined_sm90_bf16_d512 6
                   "mla_bwd b=2 hq=3 sq=70 sk=90 d=512 topk=70 bf16 causal q_start=40 k_stride=2 topk_length sink grad_sink dlse with_dist align=16" ATTNSIM_SMS=2)
    attn_sim_check(check_joined_bwd_2 mla_bwd_joined_sm90_bf16_d576 4
                   "mla_bwd hq=32 sq=11 sk=300 d=576 topk=200 bf16 causal q_start=200 lse_base_2 with_dist dkv=f32 accumulate align=16"
                   ATTNSIM_SMS=2)
    attn_sim_check(check_joined_bwd_order mla_bwd_joined_sm90_bf16_d576 5
                   "mla_bwd hq=8 sq=40 sk=900 d=576 topk=150 bf16 with_dist align=16" ATTNSIM_SMS=2 ATTN_CUDA_L2_LIMIT=1000000)
    # f16: the same in the second schedule, whose scores and dP are in different warpgroups; queries of 32 rows, two warps
    # each; groups left apart; values of one sign, which dP needs short sums for.
    attn_sim_check(check_joined_bwd_f16_nan mla_bwd_joined_sm90_f16_d576 97 "mla_bwd hq=8 sq=8 sk=40 d=576 topk=8 f16 align=16")
    attn_sim_check(check_joined_bwd_f16_nan_lse mla_bwd_joined_sm90_f16_d512 99 "mla_bwd hq=8 sq=8 sk=100 d=512 topk=20 f16 align=16")
    attn_sim_check(check_joined_bwd_f16_2 mla_bwd_joined_sm90_f16_d576 4
                   "mla_bwd hq=32 sq=11 sk=300 d=576 topk=200 f16 causal q_start=200 lse_base_2 with_dist dkv=f32 accumulate align=16"
                   ATTNSIM_SMS=2)
    attn_sim_check(check_joined_bwd_f16_apart mla_bwd_joined_sm90_f16_d512 124780547
                   "mla_bwd b=2 hq=8 sq=70 sk=90 d=512 topk=70 f16 group=8 causal q_start=40 k_stride=2 topk_length with_dist align=16" ATTNSIM_SMS=2)
    attn_sim_check(check_joined_bwd_f16_truncated mla_bwd_joined_sm90_f16_d512 131149
                   "mla_bwd hq=3 sq=4 sk=40 d=512 topk=65 f16 align=16" ATTNSIM_MMA=h100)
    # Deterministic rows: chunks of groups, the sort of their entries, groups left apart beside others; the exact path's
    # rows, in a work tile's first tile and in others.
    attn_sim_check(check_joined_bwd_det_apart mla_bwd_joined_sm90_bf16_d576_det 124780547
                   "mla_bwd b=2 hq=8 sq=70 sk=90 d=576 topk=70 bf16 group=8 causal q_start=40 k_stride=2 topk_length with_dist deterministic align=16"
                   ATTNSIM_SMS=2 ATTN_CUDA_CHUNK_LIMIT=2)
    attn_sim_check(check_joined_bwd_det_nan mla_bwd_joined_sm90_bf16_d512_det 102 "mla_bwd hq=8 sq=8 sk=40 d=512 topk=8 bf16 deterministic align=16")
    attn_sim_check(check_joined_bwd_det_nan_lse mla_bwd_joined_sm90_f16_d576_det 99 "mla_bwd hq=8 sq=8 sk=100 d=576 topk=20 f16 deterministic align=16")
    attn_sim_check(check_joined_bwd_det_2 mla_bwd_joined_sm90_f16_d512_det 4
                   "mla_bwd hq=32 sq=11 sk=300 d=512 topk=200 f16 causal q_start=200 lse_base_2 with_dist dkv=f32 accumulate deterministic align=16"
                   ATTNSIM_SMS=2 ATTN_CUDA_CHUNK_LIMIT=1)
    # Lists that are handed over: groups of half a tile, and of 16 where 8 would do; unions over a limit, set by the
    # seed, so that some groups are left apart and others are not, also in order of keys and in parts.
    attn_sim_check(check_joined_given mla_fwd_joined_sm90_bf16_d576 7
                   "mla_fwd hq=8 sq=11 sk=300 d=576 topk=100 bf16 group=4 topk_length sink lse_base_2 align=16" ATTNSIM_SMS=2)
    attn_sim_check(check_joined_given_apart mla_fwd_joined_sm90_f16_d512 124780547
                   "mla_fwd b=2 hq=8 sq=37 sk=90 d=512 topk=70 f16 group=8 causal q_start=40 k_stride=2 topk_length align=16" ATTNSIM_SMS=2)
    attn_sim_check(check_joined_given_dist dist_joined_sm90_f16_d512 7
                   "dist hq=3 sq=37 sk=90 d=512 topk=70 f16 group=16 topk_length dist_norm=mean align=16" ATTNSIM_SMS=2)
    attn_sim_check(check_joined_given_dist_apart dist_joined_sm90_bf16_d576 124780547
                   "dist b=2 hq=8 sq=37 sk=90 d=576 topk=70 bf16 group=8 causal q_start=40 k_stride=2 topk_length dist_norm=l1 align=16" ATTNSIM_SMS=2)
    attn_sim_check(check_joined_given_bwd mla_bwd_joined_sm90_bf16_d576 7
                   "mla_bwd hq=8 sq=11 sk=300 d=576 topk=100 bf16 group=4 topk_length sink grad_sink dlse with_dist align=16" ATTNSIM_SMS=2)
    attn_sim_check(check_joined_given_bwd_apart mla_bwd_joined_sm90_bf16_d576 124780547
                   "mla_bwd b=2 hq=8 sq=70 sk=90 d=576 topk=70 bf16 group=8 causal q_start=40 k_stride=2 topk_length with_dist align=16" ATTNSIM_SMS=2)
    attn_sim_check(check_joined_given_bwd_order mla_bwd_joined_sm90_bf16_d576 691011587
                   "mla_bwd hq=8 sq=40 sk=900 d=576 topk=150 bf16 group=8 topk_length with_dist align=16" ATTNSIM_SMS=2 ATTN_CUDA_L2_LIMIT=1000000)
    attn_test(sim.joined_counts sim ${PROJECT_SOURCE_DIR}/tests/sim/joined_counts.sh $<TARGET_FILE:attn_cli> $<TARGET_FILE:attn_sim_cuda>)
    attn_test(sim.joined_apart sim ${PROJECT_SOURCE_DIR}/tests/sim/joined_apart.sh $<TARGET_FILE:attn_cli> $<TARGET_FILE:attn_sim_cuda>)
    attn_test(sim.joined_choice sim ${PROJECT_SOURCE_DIR}/tests/sim/choice/joined_choice.sh $<TARGET_FILE:attn_cli> $<TARGET_FILE:attn_sim_cuda>)
    attn_test(sim.choice_dense sim ${PROJECT_SOURCE_DIR}/tests/sim/choice/dense.sh $<TARGET_FILE:attn_cli> $<TARGET_FILE:attn_sim_cuda>)
    attn_test(sim.fitting_draws sim ${PROJECT_SOURCE_DIR}/tests/sim/choice/fitting_draws.sh $<TARGET_FILE:attn_cli> $<TARGET_FILE:attn_sim_cuda>)
    set_tests_properties(sim.joined_counts sim.joined_apart sim.joined_choice sim.fitting_draws PROPERTIES ENVIRONMENT "ATTNSIM_PTX=${PROJECT_BINARY_DIR}/cuda")
    # 64 heads, a query for each CTA of a pair: what is not finite in either; parts; order; a last group of one query.
    attn_sim_check(check_joined_bwd_64_nan mla_bwd_joined_sm90_bf16_d576_h64 97 "mla_bwd hq=64 sq=8 sk=40 d=576 topk=8 bf16 align=16")
    attn_sim_check(check_joined_bwd_64_nan_lse mla_bwd_joined_sm90_bf16_d576_h64 99 "mla_bwd hq=64 sq=8 sk=100 d=576 topk=20 bf16 align=16")
    attn_sim_check(check_joined_bwd_64 mla_bwd_joined_sm90_bf16_d512_h64 7
                   "mla_bwd b=2 hq=33 sq=3 sk=90 d=512 topk=100 bf16 causal q_start=40 k_stride=2 topk_length sink dlse with_dist align=16" ATTNSIM_SMS=4)
    attn_sim_check(check_joined_bwd_64_parts mla_bwd_joined_sm90_bf16_d576_h64 4
                   "mla_bwd hq=64 sq=3 sk=400 d=576 topk=300 bf16 with_dist dkv=f32 accumulate align=16" ATTNSIM_SMS=12)
    attn_sim_check(check_joined_bwd_64_order mla_bwd_joined_sm90_bf16_d576_h64 5
                   "mla_bwd hq=64 sq=16 sk=900 d=576 topk=150 bf16 align=16" ATTNSIM_SMS=4 ATTN_CUDA_L2_LIMIT=1000000)
    attn_sim_check(check_joined_bwd_no_queries mla_bwd_joined_sm90_bf16_d576 1 "mla_bwd b=0 hq=7 sq=9 sk=21 d=576 topk=100 bf16 sink grad_sink align=16")
    # The backward on Blackwell, 128 rows of 2, 4 and 8 queries: a NaN of q or of a key that not every query of the group
    # has; several work tiles a pair; groups left apart beside others; a last group of one query.
    attn_sim_check(check_sm100_joined_nan_q mla_bwd_joined_sm100_bf16_d576 92 "mla_bwd hq=16 sq=16 sk=400 d=576 topk=100 bf16 align=16" ATTNSIM_GPU=b200)
    attn_sim_check(check_sm100_joined_nan_apart mla_bwd_joined_sm100_bf16_d576 53477561 "mla_bwd hq=64 sq=3 sk=40 d=576 topk=30 bf16 group=2 align=16" ATTNSIM_GPU=b200)
    attn_sim_check(check_sm100_joined_nan_dout mla_bwd_joined_sm100_bf16_d576 185597956
                   "mla_bwd hq=64 sq=5 sk=60 d=576 topk=66 bf16 group=2 with_dist align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=2)
    attn_sim_check(check_sm100_joined_nan_key mla_bwd_joined_sm100_bf16_d512 97
                   "mla_bwd hq=16 sq=8 sk=40 d=512 topk=8 bf16 with_dist align=16" ATTNSIM_GPU=b200)
    attn_sim_check(check_sm100_joined_2 mla_bwd_joined_sm100_bf16_d576 124780547
                   "mla_bwd b=2 hq=64 sq=9 sk=90 d=576 topk=70 bf16 group=2 causal q_start=40 k_stride=2 topk_length with_dist align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=4)
    attn_sim_check(check_sm100_joined_4 mla_bwd_joined_sm100_bf16_d512 124780547
                   "mla_bwd b=2 hq=20 sq=13 sk=90 d=512 topk=130 bf16 group=4 causal q_start=40 topk_length with_dist dist_norm=l1 align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=5)
    attn_sim_check(check_sm100_joined_8 mla_bwd_joined_sm100_bf16_d576 7
                   "mla_bwd hq=8 sq=41 sk=300 d=576 topk=100 bf16 topk_length sink grad_sink dlse dkv=f32 accumulate align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=2)
    attn_sim_check(check_sm100_joined_f16 mla_bwd_joined_sm100_f16_d576 12
                   "mla_bwd hq=20 sq=8 sk=400 d=576 topk=192 f16 with_dist align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=2)
    # In order: several chunks of groups, some left apart; a tile that is summed query by query.
    attn_sim_check(check_sm100_joined_det mla_bwd_joined_sm100_bf16_d576_det 124780547
                   "mla_bwd b=2 hq=64 sq=9 sk=90 d=576 topk=70 bf16 deterministic group=2 causal q_start=40 k_stride=2 topk_length with_dist align=16"
                   ATTNSIM_GPU=b200 ATTNSIM_SMS=4 ATTN_CUDA_CHUNK_LIMIT=3)
    attn_sim_check(check_sm100_joined_det_nan mla_bwd_joined_sm100_bf16_d512_det 99
                   "mla_bwd hq=16 sq=24 sk=80 d=512 topk=30 bf16 deterministic group=4 align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=4)
    attn_sim_check(check_sm100_joined_no_keys mla_bwd_joined_sm100_bf16_d576 1 "mla_bwd hq=7 sq=3 sk=0 d=576 topk=127 bf16 align=16" ATTNSIM_GPU=b200)
    # The forward on Blackwell, 128 rows of 2 to 16 queries: a NaN of a key that not every query of the group has, several
    # groups a pair; groups left apart beside others; last groups of one query; O rescaled; no key.
    attn_sim_check(check_sm100_joined_fwd_nan mla_fwd_joined_sm100_bf16_d576 97 "mla_fwd hq=16 sq=24 sk=40 d=576 topk=8 bf16 align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=2)
    attn_sim_check(check_sm100_joined_fwd_apart mla_fwd_joined_sm100_f16_d512 124780547
                   "mla_fwd b=2 hq=33 sq=9 sk=90 d=512 topk=70 f16 group=2 causal q_start=40 k_stride=2 topk_length sink align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=4 ATTN_CUDA_CHUNK_LIMIT=3)
    attn_sim_check(check_sm100_joined_fwd_4 mla_fwd_joined_sm100_bf16_d512 9
                   "mla_fwd hq=32 sq=9 sk=700 d=512 topk=330 bf16 group=4 causal q_start=5000 scale=2 topk_length align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=2)
    attn_sim_check(check_sm100_joined_fwd_16 mla_fwd_joined_sm100_f16_d576 5
                   "mla_fwd hq=5 sq=34 sk=300 d=576 topk=128 f16 topk_length lse_base_2 align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=8)
    attn_sim_check(check_sm100_joined_dist dist_joined_sm100_bf16_d576 124780547
                   "dist b=2 hq=20 sq=13 sk=90 d=576 topk=130 bf16 group=4 causal q_start=40 topk_length lse_base_2 dist_norm=mean align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=5 ATTN_CUDA_CHUNK_LIMIT=3)
    attn_sim_check(check_sm100_joined_dist_16 dist_joined_sm100_f16_d512 97 "dist hq=5 sq=19 sk=60 d=512 topk=40 f16 dist_norm=l1 align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=8)
    attn_sim_check(check_sm100_joined_dist_2 dist_joined_sm100_bf16_d512 102 "dist hq=64 sq=5 sk=400 d=512 topk=350 bf16 group=2 align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=4)
    attn_sim_check(check_sm100_joined_fwd_no_keys mla_fwd_joined_sm100_bf16_d576 1 "mla_fwd hq=7 sq=3 sk=0 d=576 topk=127 bf16 sink align=16" ATTNSIM_GPU=b200)
    # Dense forward on wgmma: values that are not finite, hidden by the diagonal; no key, and no address that a tensor
    # map takes; rows past a sequence's keys, in pairs of tiles.
    # Results in f32: from registers, with heads in a common tile and single columns; merged splits.
    foreach(row f16_d96_full bf16_d512)
      string(REGEX REPLACE "_.*" "" dtype ${row})
      attn_sim_check(check_out_f32_${row} sdpa_fwd_sm80_${row} 4 "sdpa_fwd hq=4 hk=2 sq=40 sk=90 d=64 dv=75 ${dtype} out=f32")
    endforeach()
    attn_sim_check(check_out_f32_splits sdpa_fwd_sm90_f16_d128_few 4 "sdpa_fwd hq=4 hk=2 sq=2 sk=900 d=64 dv=72 f16 out=f32")
    attn_sim_check(check_few_paged sdpa_fwd_sm90_f16_d128_few_paged 4 "sdpa_fwd b=3 hq=8 hk=2 sq=1 sk=1500 d=128 f16 paged page_size=16 n_pages=270 max_pages=94 seqlens_k")
    attn_sim_check(check_few_lengths sdpa_fwd_sm90_bf16_d128_few 4 "sdpa_fwd b=4 hq=8 hk=2 sq=1 sk=3000 d=128 bf16 seqlens_k")
    attn_sim_check(check_out_f32_sparse mla_fwd_sm80_f16_d512_h16 5 "mla_fwd hq=5 sq=140 sk=90 topk=20 d=512 f16 out=f32")
    attn_sim_check(check_out_f32_sparse_splits mla_fwd_sm80_f16_d512_h64 5 "mla_fwd hq=30 sq=2 sk=900 topk=400 d=512 f16 out=f32")
    attn_sim_check(check_wgmma_hidden_values sdpa_fwd_wgmma_sm90_bf16_d64 5
                   "sdpa_fwd b=2 hq=4 hk=2 sq=200 sk=300 d=64 bf16 causal align=16" ATTNSIM_SMS=3)
    attn_sim_check(check_wgmma_no_keys sdpa_fwd_wgmma_sm90_f16_d128 41655719168863
                   "sdpa_fwd hq=8 hk=2 sq=9 sk=0 d=72 f16 lse_base_2 lse_empty_plus_inf seqlens_q seqlens_k right=16 scale=0.5")
    attn_sim_check(check_wgmma_packed sdpa_fwd_wgmma_sm90_f16_d128 1
                   "sdpa_fwd b=7 hq=4 hk=2 sq=300 sk=520 d=128 f16 packed total_q=700 total_k=1500 bottom_right causal sink align=16" ATTNSIM_SMS=3)
    attn_sim_check(check_wgmma_d192_v128 sdpa_fwd_wgmma_sm90_bf16_d192_v128 5
                   "sdpa_fwd b=2 hq=4 hk=2 sq=300 sk=400 d=192 dv=128 bf16 causal bottom_right sink max_logits align=16" ATTNSIM_SMS=3)
    attn_sim_check(check_wgmma_d192 sdpa_fwd_wgmma_sm90_f16_d192 6
                   "sdpa_fwd b=2 hq=4 hk=2 sq=300 sk=400 d=190 dv=192 f16 left=90 right=30 seqlens_k out=f32 align=16" ATTNSIM_SMS=3)
    # Results in f32, exact maxima, softcap and ALiBi there; NaN and infinities among what the first two look at.
    foreach(row bf16_d64 f16_d128 bf16_d256)
      string(REGEX REPLACE "_.*" "" dtype ${row})
      attn_sim_check(check_wgmma_results_${row} sdpa_fwd_wgmma_sm90_${row} 10
                     "sdpa_fwd b=2 hq=4 hk=2 sq=150 sk=300 d=64 dv=60 ${dtype} causal bottom_right seqlens_q seqlens_k scale=0.5 max_logits out=f32 align=16"
                     ATTNSIM_SMS=3)
      attn_sim_check(check_wgmma_softcap_${row} sdpa_fwd_wgmma_sm90_${row}_mod 8
                     "sdpa_fwd b=2 hq=4 hk=2 sq=150 sk=300 d=64 ${dtype} causal bottom_right softcap=3 sink max_logits align=16" ATTNSIM_SMS=3)
      attn_sim_check(check_wgmma_alibi_${row} sdpa_fwd_wgmma_sm90_${row}_mod 9
                     "sdpa_fwd b=2 hq=4 sq=150 sk=300 d=64 ${dtype} left=100 right=90 alibi=distance softcap=30 out=f32 align=16" ATTNSIM_SMS=3)
    endforeach()
    # A product of NaN, of a row past its sequence, next to products that are large for the cap.
    attn_sim_check(check_wgmma_softcap_nan sdpa_fwd_wgmma_sm90_bf16_d64_mod 23766
                   "sdpa_fwd b=2 hq=4 sq=300 sk=900 d=64 bf16 seqlens_q seqlens_k scale=-0.4 softcap=1 alibi=distance align=16" ATTNSIM_SMS=3)
    # Tiles of 128 rows of D 64: rows that see a part of the last tile alone, a window, several tiles of rows a CTA; lengths.
    attn_sim_check(check_wgmma_d64_r128 sdpa_fwd_wgmma_sm90_bf16_d64_r128 5
                   "sdpa_fwd b=2 hq=4 hk=2 sq=300 sk=400 d=64 bf16 causal bottom_right left=150 scale=-0.2 sink align=16" ATTNSIM_SMS=3)
    attn_sim_check(check_wgmma_d64_r128_lengths sdpa_fwd_wgmma_sm90_f16_d64_r128 6
                   "sdpa_fwd b=3 hq=4 hk=2 sq=200 sk=300 d=60 dv=62 f16 causal seqlens_q seqlens_k max_logits align=16" ATTNSIM_SMS=2)
    # e4m3: NaN values hidden by the diagonal, and past the keys; no key; packed sequences; exact maxima, f32; windows.
    attn_sim_check(check_fp8_hidden_values sdpa_fwd_fp8_sm90_e4m3_d128 5
                   "sdpa_fwd b=2 hq=4 hk=2 sq=200 sk=300 d=64 e4m3 causal align=16" ATTNSIM_SMS=3)
    attn_sim_check(check_fp8_no_keys sdpa_fwd_fp8_sm90_e4m3_d128 41655719168863
                   "sdpa_fwd hq=8 hk=2 sq=9 sk=0 d=72 e4m3 lse_base_2 lse_empty_plus_inf seqlens_q seqlens_k right=16 scale=0.5 align=16")
    attn_sim_check(check_fp8_packed sdpa_fwd_fp8_sm90_e4m3_d128 1
                   "sdpa_fwd b=7 hq=4 hk=2 sq=300 sk=520 d=128 e4m3 packed total_q=700 total_k=1500 bottom_right causal sink align=16" ATTNSIM_SMS=3)
    attn_sim_check(check_fp8_results sdpa_fwd_fp8_sm90_e4m3_d128 10
                   "sdpa_fwd b=2 hq=4 hk=2 sq=150 sk=300 d=64 dv=60 e4m3 causal bottom_right seqlens_q seqlens_k scale=0.5 max_logits out=f32 align=16"
                   ATTNSIM_SMS=3)
    attn_sim_check(check_fp8_tail sdpa_fwd_fp8_sm90_e4m3_d128 11
                   "sdpa_fwd b=3 hq=2 hk=1 sq=90 sk=257 d=128 e4m3 seqlens_k align=16" ATTNSIM_SMS=3)
    attn_sim_check(check_fp8_d64 sdpa_fwd_fp8_sm90_e4m3_d64 5
                   "sdpa_fwd b=3 hq=4 hk=2 sq=200 sk=301 d=60 dv=34 e4m3 causal seqlens_k sink align=16" ATTNSIM_SMS=3)
    attn_sim_check(check_fp8_window sdpa_fwd_fp8_sm90_e4m3_d128 7
                   "sdpa_fwd b=2 hq=2 sq=150 sk=300 d=128 dv=32 e4m3 left=40 right=20 sink lse_with_sink align=16" ATTNSIM_SMS=2)
    # Exact maxima of the rows of sm80: heads in a common tile, split keys that are merged, f32 by halves and as it is, f64.
    attn_sim_check(check_max_logits_sm80 sdpa_fwd_sm80_bf16_d64 5 "sdpa_fwd hq=4 hk=2 sq=40 sk=300 d=64 bf16 causal bottom_right seqlens_q scale=0.5 max_logits" ATTNSIM_SMS=3)
    attn_sim_check(check_max_logits_full sdpa_fwd_sm80_f16_d64_full 6 "sdpa_fwd hq=2 sq=40 sk=90 d=64 f16 mask=f32 alibi=linear softcap=5 max_logits")
    attn_sim_check(check_max_logits_splits sdpa_fwd_sm90_f16_d128_few 4 "sdpa_fwd hq=4 hk=2 sq=2 sk=900 d=64 f16 max_logits")
    foreach(row f32_d128 f32_d128_halves f64_d128)
      string(REGEX REPLACE "_.*" "" dtype ${row})
      attn_sim_check(check_max_logits_${row} sdpa_fwd_sm80_${row} 4 "sdpa_fwd hq=2 sq=20 sk=200 d=72 ${dtype} causal bottom_right max_logits")
    endforeach()
    attn_sim_check(check_max_logits_padding sdpa_fwd_sm80_bf16_d64 8
                   "sdpa_fwd b=3 hq=2 sq=9 sk=9 d=40 bf16 packed total_q=20 total_k=20 fill_padding max_logits out=f32")
    attn_sim_check(check_max_logits_sm100 sdpa_fwd_sm100_bf16_d64 5
                   "sdpa_fwd b=2 hq=4 hk=2 sq=200 sk=300 d=64 bf16 causal max_logits align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=3)
    # The same on tcgen05, and what only it has: tiles of Q of which one sees no key, several work tiles a CTA.
    attn_sim_check(check_sm100_dense_hidden_values sdpa_fwd_sm100_bf16_d64 5
                   "sdpa_fwd b=2 hq=4 hk=2 sq=200 sk=300 d=64 bf16 causal align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=3)
    attn_sim_check(check_sm100_dense_no_keys sdpa_fwd_sm100_f16_d128 41655719168863
                   "sdpa_fwd hq=8 hk=2 sq=9 sk=0 d=72 f16 lse_base_2 lse_empty_plus_inf seqlens_q seqlens_k right=16 scale=0.5" ATTNSIM_GPU=b200)
    attn_sim_check(check_sm100_dense_packed sdpa_fwd_sm100_f16_d128 1
                   "sdpa_fwd b=7 hq=4 hk=2 sq=300 sk=520 d=128 f16 packed total_q=700 total_k=1500 bottom_right causal sink align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=3)
    attn_sim_check(check_sm100_dense_nan_key sdpa_fwd_sm100_bf16_d64 19 "sdpa_fwd hq=1 sq=20 sk=128 d=64 bf16 align=16" ATTNSIM_GPU=b200)
    attn_sim_check(check_sm100_dense_wide sdpa_fwd_sm100_bf16_d192_v128 2
                   "sdpa_fwd hq=2 sq=500 sk=700 d=192 dv=128 bf16 causal sink scale=-0.3 align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=2)
    # On pairs of CTAs: cleared rows of V in both, work tiles of one tile of keys, a tile of Q without rows.
    attn_sim_check(check_sm100_dense_pair sdpa_fwd_sm100_bf16_d192_v128_pair 3
                   "sdpa_fwd b=3 hq=2 hk=1 sq=700 sk=270 d=192 dv=128 bf16 seqlens_k sink align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=2)
    attn_sim_check(check_sm100_dense_pair_packed sdpa_fwd_sm100_f16_d192_v128_pair 1
                   "sdpa_fwd b=7 hq=4 hk=2 sq=300 sk=520 d=192 dv=128 f16 packed total_q=700 total_k=1500 bottom_right causal align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=5)
    # Dense backward on wgmma: rows past their sequence's end that hold NaN, keys that no query sees; in order, with many
    # key tiles; packed sequences; f16's factor.
    attn_sim_check(check_wgmma_bwd_tails sdpa_bwd_wgmma_sm90_bf16_d64 24
                   "sdpa_bwd b=3 hq=2 hk=1 sq=70 sk=100 d=64 bf16 seqlens_q seqlens_k align=16" ATTNSIM_SMS=3)
    attn_sim_check(check_wgmma_bwd_ordered sdpa_bwd_wgmma_sm90_bf16_d64_ordered 7
                   "sdpa_bwd b=2 hq=2 hk=1 sq=200 sk=600 d=64 bf16 causal bottom_right align=16" ATTNSIM_SMS=5)
    # A NaN of dout in a row that sees keys.
    attn_sim_check(check_wgmma_bwd_nan_dout sdpa_bwd_wgmma_sm90_bf16_d64 6308176969881
                   "sdpa_bwd b=2 hq=2 hk=1 sq=40 sk=70 d=64 bf16 causal align=16" ATTNSIM_SMS=3)
    attn_sim_check(check_nan_dout sdpa_bwd_sm80_f16_d64 6308176969881 "sdpa_bwd b=2 hq=2 hk=1 sq=40 sk=70 d=64 f16 causal align=16" ATTNSIM_SMS=3)
    attn_sim_check(check_wgmma_bwd_packed sdpa_bwd_wgmma_sm90_f16_d128 6
                   "sdpa_bwd b=5 hq=4 hk=2 sq=150 sk=200 d=128 f16 packed total_q=400 total_k=500 causal sink lse_with_sink grad_sink align=16" ATTNSIM_SMS=3)
    attn_sim_check(check_wgmma_bwd_steps sdpa_bwd_wgmma_sm90_bf16_d128 3
                   "sdpa_bwd hq=3 hk=1 sq=333 sk=140 d=96 dv=128 bf16 left=190 right=60 align=16" ATTNSIM_SMS=2)
    # The same on tcgen05, several steps and key tiles.
    attn_sim_check(check_sm100_bwd_tails sdpa_bwd_sm100_bf16_d64 24
                   "sdpa_bwd b=3 hq=2 hk=1 sq=170 sk=200 d=64 bf16 seqlens_q seqlens_k align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=3)
    attn_sim_check(check_sm100_bwd_ordered sdpa_bwd_sm100_bf16_d128_ordered 7
                   "sdpa_bwd b=2 hq=2 hk=1 sq=300 sk=600 d=128 bf16 causal bottom_right align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=5)
    attn_sim_check(check_sm100_bwd_packed sdpa_bwd_sm100_f16_d128 6
                   "sdpa_bwd b=5 hq=4 hk=2 sq=150 sk=200 d=128 f16 packed total_q=400 total_k=500 causal sink lse_with_sink grad_sink align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=3)
    attn_sim_check(check_sm100_bwd_steps sdpa_bwd_sm100_bf16_d128 3
                   "sdpa_bwd hq=3 hk=1 sq=333 sk=340 d=96 dv=128 bf16 left=190 right=60 dlse align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=2)
    # A sink that lse excludes: prepare takes it into the row's lse.
    attn_sim_check(check_sm100_bwd_sink sdpa_bwd_sm100_f16_d64 100
                   "sdpa_bwd b=2 hq=2 sq=9 sk=40 d=64 f16 sink grad_sink lse_base_2 align=16" ATTNSIM_GPU=b200)
    attn_sim_check(check_wgmma_bwd_sink sdpa_bwd_wgmma_sm90_bf16_d64 106
                   "sdpa_bwd hq=3 sq=9 sk=40 d=64 bf16 sink grad_sink causal bottom_right align=16")
    # D 192: tails that hold NaN, which all four forms of Q and dO must lose; in order, with f16's factor; a NaN of dout.
    attn_sim_check(check_sm100_bwd_wide_tails sdpa_bwd_sm100_bf16_d192_v128 24
                   "sdpa_bwd b=2 hq=2 hk=1 sq=170 sk=280 d=192 dv=128 bf16 seqlens_q seqlens_k align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=2)
    attn_sim_check(check_sm100_bwd_wide_ordered sdpa_bwd_sm100_f16_d192_v128_ordered 7
                   "sdpa_bwd hq=2 hk=1 sq=140 sk=520 d=192 dv=120 f16 causal bottom_right align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=5)
    attn_sim_check(check_sm100_bwd_wide_nan_dout sdpa_bwd_sm100_bf16_d192_v128 6308176969881
                   "sdpa_bwd b=2 hq=2 hk=1 sq=40 sk=70 d=192 dv=128 bf16 causal align=16" ATTNSIM_GPU=b200 ATTNSIM_SMS=2)
    # The same on pairs of CTAs: tails that hold NaN, the exchange of dS in order, packed sequences with f16's factor.
    attn_sim_check(check_pair_bwd_tails sdpa_bwd_wgmma_sm90_bf16_d256 24
                   "sdpa_bwd b=3 hq=2 hk=1 sq=70 sk=100 d=256 bf16 seqlens_q seqlens_k align=16" ATTNSIM_SMS=4)
    attn_sim_check(check_pair_bwd_ordered sdpa_bwd_wgmma_sm90_bf16_d256_ordered 7
                   "sdpa_bwd b=2 hq=2 hk=1 sq=200 sk=400 d=256 bf16 causal bottom_right align=16" ATTNSIM_SMS=5)
    attn_sim_check(check_pair_bwd_packed sdpa_bwd_wgmma_sm90_f16_d256 6
                   "sdpa_bwd b=4 hq=2 hk=1 sq=150 sk=200 d=200 dv=256 f16 packed total_q=300 total_k=400 causal sink lse_with_sink grad_sink align=16" ATTNSIM_SMS=4)
    # Pairs with whole tiles of dO: halves of 96 columns, tails that hold NaN, order, packed sequences with f16's factor.
    attn_sim_check(check_pair_bwd_192_tails sdpa_bwd_wgmma_sm90_bf16_d192_v128 24
                   "sdpa_bwd b=3 hq=2 hk=1 sq=70 sk=100 d=192 dv=128 bf16 seqlens_q seqlens_k align=16" ATTNSIM_SMS=4)
    attn_sim_check(check_pair_bwd_192_ordered sdpa_bwd_wgmma_sm90_bf16_d192_ordered 7
                   "sdpa_bwd hq=2 hk=1 sq=300 sk=400 d=192 bf16 causal bottom_right align=16" ATTNSIM_SMS=5)
    attn_sim_check(check_pair_bwd_192_packed sdpa_bwd_wgmma_sm90_f16_d192_v128 6
                   "sdpa_bwd b=4 hq=2 hk=1 sq=150 sk=200 d=184 dv=120 f16 packed total_q=300 total_k=400 causal sink lse_with_sink grad_sink align=16" ATTNSIM_SMS=4)
    # Softcap: scores far beyond the cap, and below it.
    attn_sim_check(check_wgmma_bwd_cap sdpa_bwd_wgmma_sm90_bf16_d128_mod 3
                   "sdpa_bwd hq=2 hk=1 sq=150 sk=200 d=128 bf16 causal softcap=0.5 align=16" ATTNSIM_SMS=2)
    # Queries that are one row, whose errors are one error: with the sums of an H100 twice those of exact ones.
    attn_sim_check(check_one_row sdpa_bwd_sm80_f32_d64_halves 27007789621201
                   "sdpa_bwd b=3 hq=8 sq=33 d=8 f32 causal lse_empty_plus_inf grad_mask left=64 right=0 scale=0.01 softcap=30 mask=f32" ATTNSIM_MMA=h100)
    # Values of one column: queries share what the parts of a key's number leave, and what is cut off has the sign of dP.
    attn_sim_check(check_one_column sdpa_bwd_f16x2_sm90_f32_d64 247884676230751
                   "sdpa_bwd hq=8 sq=4 sk=784 d=1 f32 right=64 align=16" ATTNSIM_MMA=h100)
    # A dout of one number on values of one sign: dP and Delta are 500 times their difference.
    attn_sim_check(check_truncated_dp mla_bwd_sm80_f16_d576_h16 20436340687321
                   "mla_bwd hq=1 sq=8 sk=20 d=576 topk=65 f16 causal dlse q_start=36 group=8" ATTNSIM_MMA=h100)
    # A sink that leaves the heads of both queries about 2^-20: P below f16's normal numbers, and no row of dkv that is larger.
    foreach(row h64 h32 h32_small h16)
      set(problem "mla_bwd hq=3 sq=2 sk=499 d=576 topk=100 f16 causal sink lse_base_2 topk_length q_start=883 k_stride=4 dkv=f32")
      attn_sim_check(check_small_weight_f16_${row} mla_bwd_sm80_f16_d576_${row} 81687115060448 "${problem}")
      attn_sim_check(check_small_weight_f16_${row}_det mla_bwd_sm80_f16_d576_${row}_det 81687115060448 "${problem} deterministic")
    endforeach()
    foreach(row h64 h64_even)
      attn_sim_check(check_truncated_dp_${row} mla_bwd_sm90_f16_d512_${row} 131149
                     "mla_bwd hq=3 sq=4 sk=40 d=512 topk=65 f16 align=16" ATTNSIM_MMA=h100)
    endforeach()
  endif()
  # The programs for a GPU on a few rows: streams, graphs, threads.
  if(attn_cuda_on AND TARGET t_gpu_graph)
    foreach(row sdpa_fwd_sm80_bf16_d128 sdpa_bwd_sm80_bf16_d128 mla_fwd_sm80_bf16_d576_h64 mla_bwd_sm80_bf16_d576_h64 dist_sm80_bf16_d576_h64)
      attn_test(sim.gpu_large_${row} sim t_gpu_large)
      set_tests_properties(sim.gpu_large_${row} PROPERTIES ENVIRONMENT
        "ATTN_CUDA_DRIVER=$<TARGET_FILE:attn_sim_cuda>;ATTN_CUDA_IMAGE=ptx;ATTNSIM_PTX=${PROJECT_BINARY_DIR}/cuda;ATTNSIM_POLICY=late;ATTNSIM_FENCES=2;ATTNSIM_WAITS=2;GPU_TEST_QUERIES=70;GPU_TEST_KERNEL=attn_${row}")
    endforeach()
    foreach(program graph parallel repeat)
      foreach(row sdpa_fwd_sm80_bf16_d64 sdpa_bwd_sm80_f16_d64_ordered mla_bwd_sm80_bf16_d512_h16 dist_sm80_f16_d512_h16 mla_join_sm80_i32_g4)
        attn_test(sim.gpu_${program}_${row} sim t_gpu_${program})
        set_tests_properties(sim.gpu_${program}_${row} PROPERTIES ENVIRONMENT
          "ATTN_CUDA_DRIVER=$<TARGET_FILE:attn_sim_cuda>;ATTN_CUDA_IMAGE=ptx;ATTNSIM_PTX=${PROJECT_BINARY_DIR}/cuda;ATTNSIM_POLICY=late;ATTNSIM_FENCES=2;ATTNSIM_WAITS=2;GPU_TEST_CASES=1;GPU_TEST_KERNEL=attn_${row}")
      endforeach()
    endforeach()
  endif()
  foreach(fault global_bounds shared_bounds alignment freed deadlock divergent_barrier trap assertion)
    foreach(policy eager late random)
      attn_test(sim.${fault}_${policy} sim t_sim_faults ${fault} ${policy})
    endforeach()
  endforeach()
  # The kit for a device: refuses in words where there is none, and can be rehearsed.
  set(kit ${PROJECT_SOURCE_DIR}/tests/sim/first_contact.sh ${PROJECT_SOURCE_DIR}/tools/first_contact.sh ${PROJECT_BINARY_DIR})
  attn_test(sim.first_contact_absent sim ${kit})
  attn_test(sim.first_contact_rehearsal sim ${CMAKE_COMMAND} -E env FIRST_CONTACT_DRIVER=$<TARGET_FILE:attn_sim_cuda>
            "PARTS=vectors kernels rows" ${PROJECT_SOURCE_DIR}/tools/first_contact.sh ${PROJECT_BINARY_DIR})
  if(attn_cuda_on AND TARGET attn_cli)
    attn_test(sim.first_contact_report sim ${kit} $<TARGET_FILE:attn_sim_cuda>)
  endif()
  if(attn_cuda_on)
    foreach(kernel hopper_attention=90a=t_sim_hopper blackwell_products=100a=t_sim_blackwell_products
                   blackwell_attention=100a=t_sim_blackwell_attention blackwell_pair=100a=t_sim_blackwell_pair)
      string(REPLACE "=" ";" words ${kernel})
      list(GET words 0 name)
      list(GET words 1 chip)
      list(GET words 2 program)
      set(source ${PROJECT_SOURCE_DIR}/tests/sim/${name}.cu)
      set(ptx ${PROJECT_BINARY_DIR}/tests/${name}.ptx)
      add_custom_command(OUTPUT ${ptx} COMMAND ${ATTN_NVCC} -ptx -lineinfo -O3 -std=c++17 -arch=compute_${chip}
                                 -I${PROJECT_SOURCE_DIR} -o ${ptx} ${source}
                         DEPENDS ${source} ${PROJECT_SOURCE_DIR}/tests/sim/blackwell_tcgen05.h COMMENT "Compiling tests/sim/${name}.cu" VERBATIM)
      add_custom_target(${name}_ptx ALL DEPENDS ${ptx})
      add_executable(${program} tests/sim/${program}.c tests/sim/kernel_mutants.c)
      target_compile_options(${program} PRIVATE ${attn_warnings})
      target_link_libraries(${program} PRIVATE ${CMAKE_DL_LIBS} m)
      set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
      add_dependencies(${program} attn_sim_cuda ${name}_ptx)
      attn_test(sim.${name} sim ${program} $<TARGET_FILE:attn_sim_cuda> ${ptx} ${source})
    endforeach()
  endif()
endif()
